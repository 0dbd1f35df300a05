"""What files of an adapter may say: PEFT's format, and what is refused of it, by name."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from actorserve.actors.model.lora.adapter import AdapterError, check_fit, read_adapter
from actorserve.actors.worker.lora.build import read_tensors

MODULE = "model.layers.0.self_attn.q_proj"
NAME = f"base_model.model.{MODULE}"


def tensors(rank: int = 4, inputs: int = 8, outputs: int = 6) -> dict[str, torch.Tensor]:
    return {f"{NAME}.lora_A.weight": torch.ones(rank, inputs), f"{NAME}.lora_B.weight": torch.ones(outputs, rank)}


def write(folder: Path, given: dict[str, torch.Tensor] | None = None, safe: bool = True, **config: Any) -> str:
    folder.mkdir(exist_ok=True)
    values = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"], **config}
    (folder / "adapter_config.json").write_text(json.dumps(values))
    if safe:
        save_file(tensors() if given is None else given, folder / "adapter_model.safetensors")
    else:
        torch.save(tensors() if given is None else given, folder / "adapter_model.bin")
    return str(folder)


@pytest.mark.parametrize("safe", [True, False])
def test_a_plain_one(safe: bool, tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path / "a", safe=safe, task_type="CAUSAL_LM", lora_dropout=0.1), 64)
    linear = adapter.linears[MODULE]
    assert (linear.rank, linear.scale, linear.inputs, linear.outputs, linear.magnitude) == (4, 2.0, 8, 6, None)
    assert set(read_tensors(adapter.file)) == set(tensors())


@pytest.mark.parametrize(
    ("config", "scale"),
    [
        ({"use_rslora": True}, 8 / math.sqrt(4)),
        ({"alpha_pattern": {"q_proj": 2}}, 0.5),
        ({"alpha_pattern": {r"layers\.1\..*": 2, r"self_attn\.q_proj": 6}}, 1.5),
        ({"alpha_pattern": {"proj": 2}}, 2.0),  # only whole parts of a name
        ({"r": 9, "rank_pattern": {r".*\.q_proj": 4}}, 2.0),
        ({"target_modules": r".*\.q_\w+"}, 2.0),
        ({"target_modules": "all-linear"}, 2.0),
    ],
)
def test_scales(config: dict[str, Any], scale: float, tmp_path: Path) -> None:
    assert read_adapter(write(tmp_path / "a", **config), 64).linears[MODULE].scale == pytest.approx(scale)


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"modules_to_save": ["lm_head"]}, "modules_to_save is not supported"),
    ({"bias": "all"}, "bias 'all' is not supported"),
    ({"peft_type": "IA3"}, "peft_type 'IA3' is not supported; only LORA"),
    ({"init_lora_weights": "pissa"}, "init_lora_weights 'pissa' changes the weights of the model"),
    ({"trainable_token_indices": [1]}, "trainable_token_indices is not supported"),
    ({"target_parameters": ["experts.down"]}, "target_parameters names experts.down, of which the file"),
    ({"lora_bias": True}, "lora_bias is not supported"),
    ({"use_something_new": True}, "use_something_new is not supported"),
    ({"use_dora": True}, "has none, and use_dora is true"),
    ({"r": 8}, r"lora_A\.weight is \[4, 8\] in place of \[8, 8\]"),
    ({"r": 0}, "must be positive"),
    ({"r": "four"}, r"adapter_config\.json: Expected `int`"),
    ({"alpha_pattern": {"(": 1}}, "the pattern '\\('"),
    ({"target_modules": r".*\.v_proj"}, "of which the file has no tensors"),
]


@pytest.mark.parametrize(("config", "reason"), REFUSED)
def test_what_is_refused(config: dict[str, Any], reason: str, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=reason):
        read_adapter(write(tmp_path / "a", **config), 64)


def test_files_that_are_missing_or_wrong(tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match="there is no folder"):
        read_adapter(str(tmp_path / "none"), 64)
    (tmp_path / "empty").mkdir()
    with pytest.raises(AdapterError, match=r"adapter_config\.json cannot be read: No such file"):
        read_adapter(str(tmp_path / "empty"), 64)
    (tmp_path / "empty" / "adapter_config.json").write_text("{}")
    with pytest.raises(AdapterError, match=r"neither adapter_model\.safetensors nor adapter_model\.bin"):
        read_adapter(str(tmp_path / "empty"), 64)
    cut = write(tmp_path / "cut")
    data = (tmp_path / "cut" / "adapter_model.safetensors").read_bytes()
    (tmp_path / "cut" / "adapter_model.safetensors").write_bytes(data[:-5])
    with pytest.raises(AdapterError, match="broken or cut off"):
        read_adapter(cut, 64)


def test_tensors_that_are_missing_or_others(tmp_path: Path) -> None:
    first, second = tensors()
    with pytest.raises(AdapterError, match=f"{MODULE} has no lora_B.weight"):
        read_adapter(write(tmp_path / "half", {first: tensors()[first]}), 64)
    name = "base_model.model.model.embed_tokens.lora_embedding_A"
    with pytest.raises(AdapterError, match=r"embed_tokens\.lora_embedding_A is not supported"):
        read_adapter(write(tmp_path / "more", {**tensors(), name: torch.ones(4, 8)}), 64)
    with pytest.raises(AdapterError, match=r"lora_A\.weight is stored as I64"):
        read_adapter(write(tmp_path / "ints", {**tensors(), first: torch.ones(4, 8, dtype=torch.int64)}), 64)
    with pytest.raises(AdapterError, match="its rank of 4 is more than --max-lora-rank 3"):
        read_adapter(write(tmp_path / "large"), 3)
    infinite = read_adapter(write(tmp_path / "inf", {**tensors(), second: torch.full((6, 4), math.inf)}), 64)
    with pytest.raises(AdapterError, match=r"lora_B\.weight holds numbers that are not finite"):
        read_tensors(infinite.file)


def test_of_another_model(tmp_path: Path) -> None:
    adapter = read_adapter(write(tmp_path / "a"), 64)
    check_fit(adapter, {MODULE: (6, 8)}, {})
    with pytest.raises(AdapterError, match=r"lora_B\.weight is \[6, 4\]; the model needs \[7, 4\]"):
        check_fit(adapter, {MODULE: (7, 8)}, {})
    with pytest.raises(AdapterError, match="q_proj cannot be adapted: the model has no such layer"):
        check_fit(adapter, {}, {})


def test_trained_layers_that_the_file_lacks(tmp_path: Path) -> None:
    """Names of layers that the model has not say nothing: lists of all that one might have are usual (Phi-3)."""
    adapter = read_adapter(write(tmp_path / "a", target_modules=["q_proj", "v_proj", "up_proj"]), 64)
    check_fit(adapter, {MODULE: (6, 8)}, {})
    # of which PEFT adapts none by its linears where one tensor holds all
    experts = "model.layers.0.mlp.experts.1.up_proj"
    check_fit(adapter, {MODULE: (6, 8), experts: (6, 8)}, {})
    with pytest.raises(AdapterError, match="target_modules names v_proj, of which the file has no tensors"):
        check_fit(adapter, {MODULE: (6, 8), "model.layers.0.self_attn.v_proj": (2, 8), experts: (6, 8)}, {})
