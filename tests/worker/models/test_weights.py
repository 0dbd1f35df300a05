"""Checkpoints in one file and in several, and what is said of those that do not fit."""

from __future__ import annotations

import json
import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory import dtypes
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.layers.linear import PackedLinear, PlainLinear
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
    change(tied, lambda tensors: tensors.update({"lm_head.weight": tensors["model.embed_tokens.weight"].clone()}))
    assert greedy(make_runner(config_for(tied))) == greedy(make_runner(config_for(checkpoints("llama_tied"))))
    change(tied, lambda tensors: tensors["lm_head.weight"].mul_(2))
    said = refusal(tied)
    assert "says tie_word_embeddings, and lm_head.weight is other than model.embed_tokens.weight; --hf-overr" in said
    assert load(tied, hf_overrides='{"tie_word_embeddings": false}')


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
    monkeypatch.setattr(dtypes, "cpu_flags", lambda: flags)
    configure(copy, dtype=stored)
    assert load(copy, dtype="auto").dtype is chosen
    assert load(copy, dtype="float16").dtype is torch.float16


# --- pytorch_model.bin ---------------------------------------------------------------------------------------------


def pickle_weights(folder: Path, parts: int = 1) -> None:
    """The same weights as torch pickles them, in several files with an index or in one."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    files = {f"pytorch_model-{part + 1}.bin": names[part::parts] for part in range(parts)}
    if parts == 1:
        files = {"pytorch_model.bin": names}
    for file, own in files.items():
        torch.save({name: tensors[name] for name in own}, folder / file)
    if parts > 1:
        places = {name: file for file, own in files.items() for name in own}
        (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize("parts", [1, 3])
def test_pickled_weights(parts: int, copy: Path, checkpoints: Folders) -> None:
    """Whole, with strides of their own, and two tensors in one storage, as torch saves them."""
    wanted = greedy(make_runner(config_for(checkpoints("llama"))))
    pickle_weights(copy, parts)
    assert greedy(make_runner(config_for(copy))) == wanted


def test_pickled_views(copy: Path, checkpoints: Folders) -> None:
    tensors = load_file(copy / "model.safetensors")
    pickle_weights(copy)
    one, two = (f"model.layers.0.mlp.{name}_proj.weight" for name in ("gate", "up"))
    both = torch.cat([tensors[one], tensors[two]])
    views = {one: both[:96], two: both[96:], "lm_head.weight": tensors["lm_head.weight"].t().contiguous().t()}
    views["model.norm.weight"] = torch.nn.Parameter(tensors["model.norm.weight"])
    torch.save(tensors | views, copy / "pytorch_model.bin")
    assert greedy(make_runner(config_for(copy))) == greedy(make_runner(config_for(checkpoints("llama"))))


def test_safetensors_come_first(copy: Path, checkpoints: Folders) -> None:
    (copy / "pytorch_model.bin").write_bytes(b"never looked at")
    assert greedy(make_runner(config_for(copy))) == greedy(make_runner(config_for(checkpoints("llama"))))


class Harm:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, ("harm",)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda path, t: torch.save(t | {"extra": Harm()}, path), r"it holds (posix|os)\.mkdir; only tens"),
        (lambda path, t: torch.save([1, 2], path), "holds no dict of tensors"),
        (lambda path, t: torch.save(t | {"step": 3}, path), "'step' is no tensor"),
        (lambda path, t: torch.save({"model": t}, path), "'model' is no tensor"),
        (
            lambda path, t: torch.save(t, path, _use_new_zipfile_serialization=False),
            "older than PyTorch 1.6",
        ),
        (lambda path, tensors: path.write_bytes(path.read_bytes()[:-100]), "broken or cut off"),
        (
            lambda path, t: torch.save(t | {"a": torch.zeros(2, dtype=torch.complex64)}, path),
            "ComplexFloat",
        ),
        (
            lambda path, t: torch.save(t | {"a": torch.zeros(2)}, path),
            "it has a, for which the model has no",
        ),
    ],
)
def test_pickles_that_are_refused(
    damage: Callable[[Path, dict[str, torch.Tensor]], object],
    said: str,
    copy: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Before anything in them is run."""
    monkeypatch.chdir(tmp_path)
    tensors = load_file(copy / "model.safetensors")
    pickle_weights(copy)
    damage(copy / "pytorch_model.bin", tensors)
    refused = refusal(copy)
    assert re.search(said, refused) and "\n" not in refused
    assert not (tmp_path / "harm").exists()
