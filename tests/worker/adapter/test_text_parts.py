"""Models that see, of which transformers' text part is served: their logits of texts are those of the whole model."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from actorserve.actors.model.info import resolve_model
from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.load import try_model, types_of
from actorserve.actors.worker.adapter.twin import shrink
from tests.support.models.census import FIELDS
from tests.support.models.checkpoints import VOCABULARY, write_tokenizer
from tests.worker.driver import config_for

from .loaded import BY_TRANSFORMERS, logits_of

KINDS = {  # by config.json's model_type
    "cohere_compass": "CohereCompassForConditionalGeneration",
    "exaone4_5": "Exaone4_5_ForConditionalGeneration",
    "hyperclovax_vision_v2": "HyperCLOVAXVisionV2ForConditionalGeneration",
    "kimi_k25": "Kimi_K25ForConditionalGeneration",
    "lfm2_vl": "Lfm2VlForConditionalGeneration",
    "lfm3_vl": "Lfm3VlForConditionalGeneration",
    "minicpmv4_6": "MiniCPMV4_6ForConditionalGeneration",
    "minicpmv4_7": "MiniCPMV4_7ForConditionalGeneration",
    "minimax_m3_vl": "MiniMaxM3SparseForConditionalGeneration",
    "nemotron_h_omni": "NemotronH_Omni_Reasoning_V3",
    "ovis2": "Ovis2ForConditionalGeneration",
    "qianfan_ocr": "QianfanOCRForConditionalGeneration",
}
WHOLE = {  # that are asked as a whole
    "aya_vision": "AyaVisionForConditionalGeneration",
    "cohere2_vision": "Cohere2VisionForConditionalGeneration",
    "cosmos3_edge": "Cosmos3EdgeForConditionalGeneration",
    "muse_glimmer": "MuseGlimmerForConditionalGeneration",
    "muse_spark": "MuseSparkForConditionalGeneration",
}
QUICK = ("lfm2_vl", "muse_glimmer")
LAYERS = re.compile(r"language_model\.model\.(blocks|encoder\.layers)\.")


def write_whole(kind: str, folder: Path) -> Any:
    """A tiny one, saved as transformers does; the model."""
    fields = {"text_config": FIELDS[f"{kind}_text"]} if f"{kind}_text" in FIELDS else {}
    config: Any = shrink(transformers.AutoConfig.for_model(kind, **fields), VOCABULARY)
    torch.manual_seed(0)
    model = getattr(transformers, {**KINDS, **WHOLE}[kind])._from_config(config).float().eval()
    verify.randomise(model)
    model.save_pretrained(folder)
    write_tokenizer(folder)
    _with_published_names(folder / "model.safetensors")
    return model


def _with_published_names(file: Path) -> None:
    """Of some kinds transformers saves the text part's layers under the names of those that see."""
    tensors = load_file(file)
    named = {LAYERS.sub("language_model.model.layers.", name): tensor for name, tensor in tensors.items()}
    save_file(named, file, {"format": "pt"})


@pytest.mark.parametrize(
    "kind", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in (*KINDS, *WHOLE)]
)
def test_logits_of_texts(kind: str, tmp_path: Path) -> None:
    model = write_whole(kind, tmp_path)
    text = torch.arange(3, 3 + verify.DECODED + 5)[None]
    with torch.inference_mode():
        wanted = model(input_ids=text, attention_mask=torch.ones_like(text)).logits[0].float()
    found = logits_of(tmp_path)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-3 * float(wanted.std()))


def test_quantised_weights_may_be_told_of_beside_the_text_part(tmp_path: Path) -> None:
    """As in Kimi K2.5's config.json."""
    write_whole(QUICK[0], tmp_path)
    values = json.loads((tmp_path / "config.json").read_text())
    fp8 = {"quant_method": "fp8", "weight_block_size": [128, 128]}
    values["text_config"]["quantization_config"] = fp8
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = config_for(tmp_path, **BY_TRANSFORMERS)
    info = resolve_model(config)
    stored = types_of(config, info, try_model(config, info)).stored
    assert stored is not None and stored.name == "fp8"
