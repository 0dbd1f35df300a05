"""Models that see, whose weights are quantised as they are published: the logits of the decoded numbers."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.quantization.int8 import Int8Linear
from tests.support.models.vision.families import checkpoint
from tests.support.models.vision.reference import Reference
from tests.support.models.weight_formats import FORMATS
from tests.worker.driver import config_for, make_runner

from .test_pictures import run

LINEAR = re.compile(r"(?!.*(?:visual|vision)).*layers\.\d+\.(?:self_attn|mlp)\.\w+_proj\.weight")
OF_TOWER = re.compile(r".*vision_tower.*layers\.\d+\.self_attn\.\w+_proj\.weight")


def quantised(family: str, name: str, root: Path, ignored: list[str], tower: bool = False) -> tuple[Path, Path]:
    """(a checkpoint in a format, one with what its numbers mean)."""
    source = checkpoint(family, root)
    packed, plain = (Path(shutil.copytree(source, root / kind)) for kind in ("packed", "plain"))
    found = load_file(source / "model.safetensors")
    exact, count = dict(found), 0
    for key in list(found):
        whole = ".".join(key.split(".")[:-1])
        if not LINEAR.fullmatch(key) and not (tower and OF_TOWER.fullmatch(key)):
            continue
        if any(part in whole for part in ignored):
            continue
        stored, meant = FORMATS[name].pack(found.pop(key).double().numpy())
        found |= {f"{whole}.{part}": tensor for part, tensor in stored.items()}
        exact[key] = exact[key].new_tensor(meant)
        count += 1
    assert count > 6
    values = json.loads((source / "config.json").read_text())
    config = FORMATS[name].config | {"modules_to_not_convert": ignored, "ignore": ignored}
    config |= {"llm_int8_skip_modules": ignored}
    (packed / "config.json").write_text(json.dumps(values | {"quantization_config": config}))
    save_file(found, packed / "model.safetensors", {"format": "pt"})
    save_file(exact, plain / "model.safetensors", {"format": "pt"})
    return packed, plain


@pytest.mark.parametrize(
    ("family", "name", "ignored", "tower"),
    [
        ("qwen2_5_vl", "fp8", ["visual", "lm_head", "layers.1.mlp"], False),
        ("gemma3", "bnb_nf4", ["lm_head", "multi_modal_projector", "language_model.model.layers.0.mlp"], True),
    ],
)
def test_logits_are_those_of_the_decoded_numbers(
    family: str, name: str, ignored: list[str], tower: bool, tmp_path: Path
) -> None:
    packed, plain = quantised(family, name, tmp_path, ignored, tower)
    run(lambda family: (Reference(family, plain), packed), family, quantization="none")


def test_one_scale_a_weight_and_one_for_what_it_is_given(tmp_path: Path) -> None:
    """As Mistral publishes Ministral 3 and Devstral Small 2."""
    ignored = ["model.vision_tower", "model.multi_modal_projector", "lm_head"]
    packed, plain = quantised("ministral3", "fp8_one_scale", tmp_path, ignored)
    tensors = load_file(packed / "model.safetensors")
    assert any(tensor.shape == () for tensor in tensors.values())
    scales = [name for name in tensors if name.endswith(".weight_scale_inv")]
    tensors |= {name.replace("weight_scale_inv", "activation_scale"): torch.tensor(0.5) for name in scales}
    save_file(tensors, packed / "model.safetensors", {"format": "pt"})
    values = json.loads((packed / "config.json").read_text())
    values["quantization_config"] |= {"activation_scheme": "static", "dequantize": False, "weight_block_size": None}
    (packed / "config.json").write_text(json.dumps(values))
    run(lambda family: (Reference(family, plain), packed), "ministral3", quantization="none")


def test_texts_are_computed_with_8_bits(tmp_path: Path) -> None:
    packed, _ = quantised("qwen2_5_vl", "w4a16", tmp_path, ["re:.*visual.*", "lm_head"])
    model = make_runner(config_for(packed, device="cpu")).model
    assert isinstance(model, CpuModel)
    assert all(isinstance(layer.down, Int8Linear) for layer in model.layers)
    assert not isinstance(model.head, Int8Linear)
