"""Checkpoints of quantised weights, in each format: decoded, computed with, and refused where they do not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from actorserve.actors.model.architecture import Architecture, read_architecture
from actorserve.actors.model.checks import find_model
from actorserve.actors.model.info import resolve_model
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.cpu.runner import CpuRunner
from actorserve.actors.worker.memory import make_pool
from actorserve.actors.worker.models.sharding import Alone, shard
from actorserve.actors.worker.models.weights import load_model, open_checkpoint
from actorserve.actors.worker.quantization.int8 import Int8Linear
from tests.support.weight_formats import FORMATS, write

from .cpu.test_runner import prompt
from .driver import LENGTH, Driver, Sequence, config_for

Folders = Callable[..., Path]
ALL = slice(None)
APPROXIMATE = ("nvfp4", "modelopt_nvfp4", "bnb_nf4_nested", "bnb_int8")  # two roundings, where float64 has one


@pytest.fixture
def source(checkpoints: Folders) -> Path:
    return checkpoints("llama", num_key_value_heads=2, initializer_range=0.1)


def shape_of(folder: Path, quantization: str = "auto") -> Architecture:
    return read_architecture(json.loads((folder / "config.json").read_text()), quantization=quantization)


def answers(model: CpuModel) -> list[list[int]]:
    config = config_for(Path())
    pool = make_pool(model.shape, 64, config.block_size, model.dtype)
    runner = CpuRunner(model, pool, torch.zeros(4, LENGTH, dtype=torch.int32).numpy(), config.block_size, 4)
    return Driver(runner, seed=3).run([Sequence(prompt(9 + 7 * number, number), 12) for number in range(3)])


def load(folder: Path, **options: object) -> CpuModel:
    config = config_for(folder, **options)
    find_model(config)
    return load_model(config, resolve_model(config))


def same(found: Tensor, wanted: Tensor, name: str) -> None:
    tolerance = 1e-6 if name in APPROXIMATE else 0
    torch.testing.assert_close(found.float(), wanted.float(), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("name", FORMATS)
def test_the_numbers_are_those_that_the_format_means(name: str, source: Path, tmp_path: Path) -> None:
    """Whole, in parts, and in products: those of floats, and those of int8 as of the same floats."""
    packed, plain = write(source, name, tmp_path)
    shape, meant = shape_of(packed), load_file(plain / "model.safetensors")
    read = open_checkpoint(packed, shape)
    for key in shape.specs():
        same(read(key, ALL, None), meant[key], name)
    key = "model.layers.0.mlp.down_proj.weight"
    same(read(key, slice(3, 50), slice(7, 41)), meant[key][3:50, 7:41], name)
    floats = load(packed, quantization="none")
    if name not in APPROXIMATE:
        assert answers(floats) == answers(load(plain))
    ours = load(packed)
    get = shard(open_checkpoint(plain, shape_of(plain)), shape_of(plain), Alone())
    theirs = CpuModel(shape, get, torch.float32, LENGTH)
    assert [isinstance(layer.down, Int8Linear) for layer in ours.layers] == [True, False, True]
    assert not isinstance(ours.head, Int8Linear)
    x = torch.randn(5, 64, generator=torch.Generator().manual_seed(1))
    for own, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(own.qkv(x), other.qkv(x), rtol=0, atol=0.02 if name in APPROXIMATE else 0)
        torch.testing.assert_close(own.gate_up(x), other.gate_up(x), rtol=0, atol=0.02 if name in APPROXIMATE else 0)
    if name not in APPROXIMATE:
        assert answers(ours) == answers(theirs)
