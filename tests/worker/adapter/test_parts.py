"""Checkpoints of which the text part alone is served, parts that are of another type than the rest, and classes that
are not in transformers' table of decoders."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from actorserve.actors.model.config_json import weights_method
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.values import Values
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import verify
from actorserve.actors.worker.adapter.checkpoint.model_class import read_config
from actorserve.actors.worker.adapter.checkpoint.stored import Source
from actorserve.actors.worker.adapter.improve import LinearModule
from actorserve.actors.worker.adapter.load import stored_dtype, try_model, types_of
from actorserve.actors.worker.adapter.twin import shrink
from tests.support.models.census import FIELDS, write_tiny
from tests.support.models.checkpoints import VOCABULARY, write_tokenizer
from tests.worker.driver import config_for

from .loaded import BY_TRANSFORMERS, load, logits_of

WHOLE = {  # the text part's kind: the whole model's, its class, and what the tensors of the other part begin with
    "qwen3_5_text": ("qwen3_5", "Qwen3_5ForConditionalGeneration", "model.visual."),
    "qwen3_5_moe_text": ("qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", "model.visual."),
    "qwen4_exp_text": ("qwen4_exp", "Qwen4ExpForConditionalGeneration", "model.visual."),
    "gemma3n_text": ("gemma3n", "Gemma3nForConditionalGeneration", "model.vision_tower."),
}


def with_eyes(text: Path, folder: Path, kind: str) -> Path:
    """A checkpoint of the whole model, as it is published: names, config.json, and tensors of its other part."""
    model_type, architecture, other = WHOLE[kind]
    shutil.copytree(text, folder)
    own = json.loads((folder / "config.json").read_text())
    whole = {"architectures": [architecture], "model_type": model_type, "text_config": own}
    (folder / "config.json").write_text(json.dumps(whole))
    tensors = load_file(folder / "model.safetensors")
    named = {
        name.replace("model.", "model.language_model.", 1) if name.startswith("model.") else name: tensor
        for name, tensor in tensors.items()
    }
    named[f"{other}blocks.0.weight"] = torch.ones(3)
    save_file(named, folder / "model.safetensors", {"format": "pt"})
    return folder


@pytest.mark.parametrize(
    "kind",
    [
        *("qwen3_5_text", "qwen4_exp_text"),
        *(pytest.param(one, marks=pytest.mark.slow) for one in ("qwen3_5_moe_text", "gemma3n_text")),
    ],
)
def test_the_text_part_of_a_model_that_sees(kind: str, tmp_path: Path) -> None:
    """Logits are those of a checkpoint of the text part; what belongs to no part is refused by name."""
    write_tiny(kind, tmp_path / "text")
    whole = with_eyes(tmp_path / "text", tmp_path / "whole", kind)
    assert torch.equal(logits_of(whole), logits_of(tmp_path / "text"))
    tensors = load_file(whole / "model.safetensors")
    save_file({**tensors, "model.other.weight": torch.ones(2)}, whole / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"has model\.other\.weight, for which the model has no use"):
        logits_of(whole)


def test_what_a_kind_keeps_in_float32_is_multiplied_so(tmp_path: Path) -> None:
    """What makes logits is, of this one."""
    write_tiny("hy_v4", tmp_path)
    model = load(tmp_path, dtype="bfloat16").model
    assert isinstance(model.lm_head, torch.nn.Linear) and model.lm_head.weight.dtype == torch.float32
    assert isinstance(model.model.layers[0].self_attn.o_proj, LinearModule)


def test_a_class_that_is_not_in_the_table_of_decoders(tmp_path: Path) -> None:
    """Mistral 4: latent attention, experts, and queries that grow with their positions."""
    config: Any = shrink(transformers.AutoConfig.for_model("mistral4"), VOCABULARY)
    torch.manual_seed(0)
    model = transformers.Mistral4ForCausalLM(config).float().eval()
    verify.randomise(model)
    model.save_pretrained(tmp_path)
    write_tokenizer(tmp_path)
    found = logits_of(tmp_path)
    text = torch.arange(3, 3 + verify.DECODED + 5)[None]
    with torch.inference_mode():
        wanted = model(input_ids=text).logits[0].float()
    assert torch.allclose(found, wanted, rtol=0, atol=1e-3 * float(wanted.std()))


KINDS = {  # by config.json's model_type
    "cohere_compass": "CohereCompassForConditionalGeneration",
    "exaone4_5": "Exaone4_5_ForConditionalGeneration",
    "gemma4_unified": "Gemma4UnifiedForConditionalGeneration",
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
ASKED_AS_A_WHOLE = {  # that are asked as a whole
    "aya_vision": "AyaVisionForConditionalGeneration",
    "cohere2_vision": "Cohere2VisionForConditionalGeneration",
    "cosmos3_edge": "Cosmos3EdgeForConditionalGeneration",
    "glm5_next": "Glm5NextForConditionalGeneration",
    "muse_glimmer": "MuseGlimmerForConditionalGeneration",
    "muse_spark": "MuseSparkForConditionalGeneration",
    "step3p7": "Step3p7ForConditionalGeneration",
}
QUICK = ("lfm2_vl", "muse_glimmer")
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": -1, "desc_act": False, "sym": True}
LAYERS = re.compile(r"language_model\.model\.(blocks|encoder\.layers)\.")


def write_whole(kind: str, folder: Path) -> Any:
    """A tiny one, saved as transformers does; the model."""
    fields = {"text_config": FIELDS[f"{kind}_text"]} if f"{kind}_text" in FIELDS else {}
    config: Any = shrink(transformers.AutoConfig.for_model(kind, **fields), VOCABULARY)
    torch.manual_seed(0)
    model = getattr(transformers, {**KINDS, **ASKED_AS_A_WHOLE}[kind])._from_config(config).float().eval()
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
    "kind", [pytest.param(one, marks=() if one in QUICK else pytest.mark.slow) for one in (*KINDS, *ASKED_AS_A_WHOLE)]
)
def test_logits_of_texts_are_those_of_the_whole_model(kind: str, tmp_path: Path) -> None:
    model = write_whole(kind, tmp_path)
    text = torch.arange(3, 3 + verify.DECODED + 5)[None]
    with torch.inference_mode():
        wanted = model(input_ids=text, attention_mask=torch.ones_like(text)).logits[0].float()
    found = logits_of(tmp_path)
    assert torch.allclose(found, wanted, rtol=0, atol=1e-3 * float(wanted.std()))


def change(folder: Path, tensors: dict[str, Any], beside: dict[str, Any], text: dict[str, Any]) -> None:
    """Tensors that come to a checkpoint, and fields of its config.json: None takes one away."""
    file = folder / "model.safetensors"
    save_file({**load_file(file), **tensors}, file, {"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    for place, fields in ((values, beside), (values["text_config"], text)):
        kept = {name: value for name, value in (place | fields).items() if value is not None}
        place.clear()
        place.update(kept)
    (folder / "config.json").write_text(json.dumps(values))


def read(folder: Path, trust: bool = False) -> Any:
    return read_config(resolve_model(config_for(folder, **BY_TRANSFORMERS)), trust)


@pytest.mark.parametrize("trust", [False, True])
def test_a_whole_number_of_the_text_part_is_read_where_transformers_wants_a_point(trust: bool, tmp_path: Path) -> None:
    """With --trust-remote-code too, where no code of its own reads config.json."""
    write_whole("exaone4_5", tmp_path)
    change(tmp_path, {}, {}, {"initializer_range": 1})
    assert read(tmp_path, trust).get_text_config(decoder=True).initializer_range == 1.0


PUBLISHED_LFM2_VL: dict[str, Any] = {  # fields of LFM2-VL's first config.json, beside those of transformers
    **{"model_type": "lfm2-vl", "auto_map": {"AutoConfig": "configuration_lfm2_vl.Lfm2VlConfig"}},
    **{"do_image_splitting": True, "encoder_patch_size": 16, "image_token_index": 396, "max_image_tokens": 256},
    **{"max_tiles": 10, "min_tiles": 2, "pixel_tolerance": 2.0, "tile_size": 512, "use_thumbnail": True},
    "vision_feature_layer": -1,
}
ITS_TEXT_PART: dict[str, Any] = {
    **{"intermediate_size": None, "block_ff_dim": 96, "block_dim": 64, "conv_dim": 64, "num_heads": 4},
    **{"theta": 1e6, "rope_theta": 1e6, "rope_parameters": None, "tie_embedding": True, "tie_word_embeddings": None},
    **{"layer_types": None, "block_norm_eps": 1e-5, "block_use_swiglu": True, "use_pos_enc": True},
}


def test_lfm2_vl_as_it_was_published(tmp_path: Path) -> None:
    """By another name than transformers', which was refused, and whose text part says sizes by names of its own."""
    write_whole("lfm2_vl", tmp_path)
    before = logits_of(tmp_path)
    change(tmp_path, {}, PUBLISHED_LFM2_VL, ITS_TEXT_PART)
    assert torch.equal(logits_of(tmp_path), before)


def test_layers_that_draft_are_dropped_where_the_whole_model_drops_them(tmp_path: Path) -> None:
    write_whole("exaone4_5", tmp_path)
    change(tmp_path, {"mtp.layers.0.input_layernorm.weight": torch.ones(2)}, {}, {})
    load(tmp_path)
    change(tmp_path, {"other.weight": torch.ones(2)}, {}, {})
    with pytest.raises(ConfigError, match=r"it has other\.weight, for which the model has no use"):
        load(tmp_path)


def test_the_type_may_be_told_of_beside_the_text_part(tmp_path: Path) -> None:
    write_whole(QUICK[0], tmp_path)
    change(tmp_path, {}, {"dtype": "bfloat16"}, {"dtype": None})
    assert stored_dtype(read(tmp_path)) == "bfloat16"


def test_a_head_of_its_own_is_not_tied_by_default(tmp_path: Path) -> None:
    """Ovis 2: the whole model's default is that it is, and the text part's that it is not."""
    write_whole("ovis2", tmp_path)
    assert "language_model.lm_head.weight" not in load_file(tmp_path / "model.safetensors")
    change(tmp_path, {}, {"tie_word_embeddings": None}, {"tie_word_embeddings": False})
    assert read(tmp_path).tie_word_embeddings
    change(tmp_path, {"language_model.lm_head.weight": torch.ones(VOCABULARY, 64)}, {}, {})
    assert not read(tmp_path).tie_word_embeddings
    change(tmp_path, {}, {"tie_word_embeddings": True}, {})
    assert read(tmp_path).tie_word_embeddings


def test_biases_of_zeros_of_a_text_part_are_passed_over(tmp_path: Path) -> None:
    """Old tools write them beside GPTQ's weights."""
    names = dict.fromkeys(("qweight", "qzeros", "g_idx"), torch.int32) | dict.fromkeys(("scales", "bias"), torch.half)
    shapes = {"qweight": (8, 64), "qzeros": (1, 8), "g_idx": (64,), "scales": (1, 64), "bias": (64,)}
    layer = "language_model.model.layers.0.self_attn.o_proj"
    tensors = {f"{layer}.{name}": torch.zeros(shapes[name], dtype=dtype) for name, dtype in names.items()}
    save_file(tensors, tmp_path / "model.safetensors")
    stored = weights_method(Values(tmp_path, {"quantization_config": GPTQ}), "auto")[1]
    assert Source(tmp_path, stored, text_alone=True).is_needless("model.layers.0.self_attn.o_proj.bias")


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
