"""Checkpoints in one file and in several, and what is said of those that do not fit."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model import machine
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.linear import PackedLinear, PlainLinear
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.models.weights import load_model

from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
PROMPT = list(range(3, 40))


def load(folder: Path, **options: object) -> CpuModel:
    config = config_for(folder, **options)
    return load_model(config, resolve_model(config))


def greedy(runner: CpuRunner) -> list[int]:
    return Driver(runner).run([Sequence(PROMPT, 16)])[0]


@pytest.fixture
def copy(checkpoints: Folders, tmp_path: Path) -> Path:
    """A llama checkpoint to break."""
    return Path(shutil.copytree(checkpoints("llama"), tmp_path / "llama"))


def change(folder: Path, edit: Callable[[dict[str, torch.Tensor]], Any]) -> None:
    """Write the weights anew, edited."""
    tensors = load_file(folder / "model.safetensors")
    edit(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def configure(folder: Path, **values: object) -> None:
    """Change config.json."""
    known = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(known | values))


def refusal(folder: Path, **options: object) -> str:
    with pytest.raises(ConfigError) as caught:
        load(folder, **options)
    return str(caught.value)


def test_shards_are_read_as_one(checkpoints: Folders) -> None:
    whole, sharded = checkpoints("llama"), checkpoints("llama", shard="100KB")
    assert len(list(sharded.glob("*.safetensors"))) > 2
    assert greedy(make_runner(config_for(sharded))) == greedy(make_runner(config_for(whole)))


def maps_of(file: Path) -> list[range]:
    """Where this process has a file mapped."""
    lines = [line.split() for line in Path("/proc/self/maps").read_text().splitlines()]
    ranges = [line[0].split("-") for line in lines if line[-1] == str(file)]
    return [range(int(first, 16), int(end, 16)) for first, end in ranges]


def test_embeddings_stay_mapped_and_what_was_joined_needs_no_map(copy: Path) -> None:
    model = load(copy)
    (mapped,) = maps_of(copy / "model.safetensors")
    assert model.embeddings.data_ptr() in mapped
    linear = model.layers[0].out
    assert isinstance(linear, PlainLinear) and linear.weight.data_ptr() not in mapped  # it would keep all of the file


def test_large_weights_that_are_not_packed_stay_mapped(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = greedy(make_runner(config_for(copy)))
    monkeypatch.setattr(PackedLinear, "SMALLEST", 64)
    monkeypatch.setattr(PackedLinear, "works", lambda dtype: False)
    model = load(copy)
    maps = maps_of(copy / "model.safetensors")
    for linear, is_mapped in ((model.layers[0].out, True), (model.layers[0].down, True), (model.layers[0].qkv, False)):
        assert isinstance(linear, PlainLinear)
        assert is_mapped == any(linear.weight.data_ptr() in mapped for mapped in maps)
    assert greedy(make_runner(config_for(copy))) == expected


def test_a_missing_shard_is_named(checkpoints: Folders, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(checkpoints("llama", shard="100KB"), tmp_path / "sharded"))
    lost = sorted(folder.glob("*.safetensors"))[1]
    lost.unlink()
    assert lost.name in refusal(folder)


def test_missing_unexpected_and_misshapen_tensors_are_named(copy: Path) -> None:
    def edit(tensors: dict[str, torch.Tensor]) -> None:
        del tensors["model.layers.1.mlp.up_proj.weight"]
        tensors["model.layers.7.extra.weight"] = torch.zeros(3)
        tensors["model.norm.weight"] = torch.zeros(65)

    change(copy, edit)
    said = refusal(copy)
    assert "lacks model.layers.1.mlp.up_proj.weight" in said
    assert "has model.layers.7.extra.weight, for which" in said
    assert "model.norm.weight [65] in place of [64]" in said


def test_only_some_of_many_names_are_told(copy: Path) -> None:
    configure(copy, num_hidden_layers=9)
    assert "and 49 more" in refusal(copy)


def test_a_cut_off_file_is_refused(copy: Path) -> None:
    path = copy / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    assert "model.safetensors is broken or cut off" in refusal(copy)
    path.write_bytes(b"")
    assert "model.safetensors is broken or cut off" in refusal(copy)


def test_no_weights_at_all(copy: Path) -> None:
    (copy / "model.safetensors").unlink()
    assert "--load-format dummy" in refusal(copy)
    assert load(copy, load_format="dummy")


def test_integer_weights_are_refused(copy: Path) -> None:
    change(copy, lambda tensors: tensors.update({"model.norm.weight": torch.zeros(64, dtype=torch.int8)}))
    assert "model.norm.weight is stored as I8" in refusal(copy)


def test_old_buffers_and_a_needless_head_are_passed_over(copy: Path, checkpoints: Folders, tmp_path: Path) -> None:
    change(copy, lambda tensors: tensors.update({"model.layers.0.self_attn.rotary_emb.inv_freq": torch.ones(8)}))
    assert load(copy)
    tied = Path(shutil.copytree(checkpoints("llama_tied"), tmp_path / "tied"))
    change(tied, lambda tensors: tensors.update({"lm_head.weight": torch.zeros(384, 64)}))
    assert greedy(make_runner(config_for(tied))) == greedy(make_runner(config_for(checkpoints("llama_tied"))))


@pytest.mark.parametrize("stored", [torch.bfloat16, torch.float16])
def test_narrow_weights_are_widened_exactly(copy: Path, stored: torch.dtype, tmp_path: Path) -> None:
    """float32 from a 16-bit file is what float32 from its widened copy is."""

    def narrow(tensors: dict[str, torch.Tensor]) -> None:
        tensors.update({name: tensor.to(stored) for name, tensor in tensors.items()})

    change(copy, narrow)
    wide = Path(shutil.copytree(copy, tmp_path / "wide"))
    change(wide, lambda tensors: tensors.update({name: tensor.float() for name, tensor in tensors.items()}))
    assert greedy(make_runner(config_for(copy))) == greedy(make_runner(config_for(wide)))


@pytest.mark.parametrize(
    ("flags", "stored", "chosen"),
    [
        ({"avx2"}, "bfloat16", torch.float32),
        ({"avx2", "avx512_bf16"}, "bfloat16", torch.bfloat16),
        ({"amx_bf16"}, "bfloat16", torch.bfloat16),
        ({"avx512_bf16"}, "float16", torch.float32),
        ({"avx512_bf16"}, "float32", torch.float32),
    ],
)
def test_the_automatic_type(
    flags: set[str], stored: str, chosen: torch.dtype, copy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(machine, "cpu_flags", lambda: flags)
    configure(copy, dtype=stored)
    assert load(copy, dtype="auto").dtype is chosen
    assert load(copy, dtype="float16").dtype is torch.float16
