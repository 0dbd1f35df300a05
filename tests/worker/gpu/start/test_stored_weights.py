"""Quantised checkpoints on a GPU: what stays in its bits, that these mean the same, and that answers are the CPU's."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.architecture import Architecture  # noqa: E402
from actorserve.actors.model.config_json import read_architecture  # noqa: E402
from actorserve.actors.model.info import read_json, resolve_model  # noqa: E402
from actorserve.actors.model.layers import LinearSpec  # noqa: E402
from actorserve.actors.model.memory.machine import weight_bytes  # noqa: E402
from actorserve.actors.model.sharding import shard_shape  # noqa: E402
from actorserve.actors.worker.formats.as_stored import CheckpointBits  # noqa: E402
from actorserve.actors.worker.gpu import load as gpu_load  # noqa: E402
from actorserve.actors.worker.gpu.buffers import Sizes  # noqa: E402
from actorserve.actors.worker.gpu.executor import GpuModel  # noqa: E402
from actorserve.actors.worker.gpu.graphs import mixed_sizes  # noqa: E402
from actorserve.actors.worker.gpu.layers.stored import StoredGpuLinear  # noqa: E402
from actorserve.actors.worker.gpu.memory import make_pools  # noqa: E402
from actorserve.actors.worker.gpu.runner import GpuRunner  # noqa: E402
from actorserve.actors.worker.lora.products import weight_of  # noqa: E402
from actorserve.actors.worker.models.sharding import Alone, shard  # noqa: E402
from actorserve.actors.worker.models.weights import open_checkpoint, read_parts  # noqa: E402
from actorserve.actors.worker.quantization.none import CublasLinear  # noqa: E402
from actorserve.kernels.triton.linear.stored_weights import decoded  # noqa: E402
from tests.support.models.weight_formats import APPROXIMATE, FORMATS, write  # noqa: E402

from ...driver import LENGTH, Driver, Sequence, config_for, make_runner  # noqa: E402
from ..test_runner import BLOCKS, ROWS, TOKENS, GpuDriver, prompt  # noqa: E402

Folders = Callable[..., Path]
BECOME_FLOATS = (
    "w4a16_g_idx",
    "gptq_g_idx",
    "w8a8_zero_points",
    "torchao",
    "torchao_groups",
    "mlx",
    "mlx_3",
    "mlx_mxfp4",
    "mlx_nvfp4",
)
SERVED = ["awq"]
SLOW_SERVED = [
    pytest.param(name, marks=pytest.mark.slow)
    for name in ("fp8", "w4a16", "w8a8", "gptq_8", "nvfp4", "mxfp4", "bnb_int8", "gptq_g_idx")
]


@pytest.fixture
def source(checkpoints: Folders) -> Path:
    return checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=2)


def shape_of(folder: Path) -> Architecture:
    return read_architecture(read_json(folder / "config.json"), quantization="none")


def stays(name: str) -> bool:
    return name not in BECOME_FLOATS and not name.startswith("bnb_nf4")


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "modelopt_mixed"])  # of another shape
def test_bits_mean_what_the_decoder_makes_of_them(name: str, source: Path, tmp_path: Path) -> None:
    """Alone, and cut for each of two workers: q, k and v as one, and what has its columns cut."""
    packed, _ = write(source, name, tmp_path)
    shape = shape_of(packed)
    tolerance = 1e-6 if name in APPROXIMATE else 1e-7
    for place in (Alone(), Alone(0, 2), Alone(1, 2)):
        bits = CheckpointBits(packed, shape, place, False, read_parts)
        get = shard(open_checkpoint(packed, shape), shape, place)
        layer = shard_shape(shape, place.size).layer_at(0)
        for linears in (layer.qkv, (layer.out,), layer.gate_up, (layer.down,)):
            found = bits.of(linears, never)
            whole = place.size == 1 or linears[0].columns == layer.qkv[0].columns
            assert bool(found) == stays(name) or not whole, linears
            if found:
                wanted = torch.cat([get(f"{linear.name}.weight") for linear in linears]).float()
                torch.testing.assert_close(decoded(*found), wanted, rtol=tolerance, atol=0)
    left_out = shape.layer_at(1)
    assert not CheckpointBits(packed, shape, Alone(), False, read_parts).of(left_out.gate_up, never)


READ_WHOLE = ("gptq_3", "w4a16_g_idx", "gptq_g_idx")  # of words of 32 bits that are cut; what is decoded


@pytest.mark.parametrize("name", [name for name in FORMATS if name != "modelopt_mixed" and stays(name)])
def test_a_member_of_a_group_reads_its_part(name: str, source: Path, tmp_path: Path) -> None:
    """No more bytes come to its device than it goes on with, but scales of whole tensors and what is said of them."""
    packed, _ = write(source, name, tmp_path)
    shape = shape_of(packed)
    layer = shape.layer_at(0)

    def taken(place: Alone, linears: Iterable[LinearSpec]) -> tuple[dict[str, int], bool]:
        found: dict[str, int] = {}

        def counted(homes: Any) -> Any:
            read = read_parts(homes)

            def get(name: str, *some: Any) -> torch.Tensor:
                part = read(name, *some)
                found[name] = found.get(name, 0) + part.numel() * part.element_size()
                return part

            return get

        return found, bool(CheckpointBits(packed, shape, place, False, counted).of([*linears], never))

    for linears in (layer.qkv, (layer.out,), layer.gate_up, (layer.down,)):
        (whole, _), (part, there) = (taken(place, linears) for place in (Alone(), Alone(1, 2)))
        large = {name for name, size in whole.items() if size >= 1024}
        assert large and part.keys() == whole.keys()
        if there and name not in READ_WHOLE:
            assert all(2 * part[one] <= whole[one] for one in large), (part, whole)


def test_bytes_of_two_floats_may_be_stored_with_a_sign(source: Path, tmp_path: Path) -> None:
    """Their upper halves, of 8 and more in half of them, mean the same."""
    packed, plain = write(source, "quark_mxfp4", tmp_path)
    found = load_file(packed / "model.safetensors")
    pairs = {name: tensor for name, tensor in found.items() if name.endswith(".weight") and tensor.dtype is torch.uint8}
    save_file(found | {name: tensor.view(torch.int8) for name, tensor in pairs.items()}, packed / "model.safetensors")
    shape = shape_of(packed)
    linear = shape.layer_at(0).out
    name = f"{linear.name}.weight"
    bits = CheckpointBits(packed, shape, Alone(), False, read_parts).of([linear], never)
    assert (pairs[name] >> 4 >= 8).any()
    torch.testing.assert_close(decoded(*bits), load_file(plain / "model.safetensors")[name], rtol=1e-7, atol=0)


def never() -> torch.Tensor:
    raise AssertionError("bits are not made of floats")


def load(folder: Path, **options: object) -> GpuModel:
    config = config_for(folder, block_size=16, **options)
    return gpu_load.load_model(config, resolve_model(config), DEVICE)


def answers(model: GpuModel, kind: torch.dtype = torch.float32) -> list[list[int]]:
    """Prompts of more tokens than are multiplied as they are stored, and rows that decode."""
    sizes = Sizes(ROWS, TOKENS, LENGTH, 16, 0, 0)
    mixed = mixed_sizes(ROWS, TOKENS // 2, False)
    runner = GpuRunner(model, np.zeros((ROWS, LENGTH), np.int32), sizes, [1, 2, 4], mixed=mixed)
    runner.pools = make_pools(model.shape, BLOCKS, 16, kind, DEVICE)
    return GpuDriver(runner, budget=TOKENS, seed=1).run(sequences())


def sequences() -> list[Sequence]:
    return [Sequence(prompt(size, size), 4) for size in (90, 3, 17)]


@pytest.mark.parametrize("name", [*SERVED, *SLOW_SERVED])
def test_answers_are_those_of_the_decoded_weights(name: str, source: Path, tmp_path: Path) -> None:
    packed, _ = write(source, name, tmp_path)
    config = config_for(packed, block_size=16, quantization="none")
    wanted = Driver(make_runner(config), seed=3).run(sequences())
    model = load(packed)
    layer = model.layers[0]
    own = StoredGpuLinear if stays(name) else CublasLinear
    assert all(isinstance(linear, own) for linear in (layer.qkv, layer.out, layer.gate_up, layer.down))
    assert isinstance(model.layers[1].gate_up, CublasLinear), "which the checkpoint has in floats"
    assert answers(model) == wanted
    assert isinstance(load(packed, quantization="none").layers[0].qkv, CublasLinear)


def test_alike_in_every_batch(source: Path, tmp_path: Path) -> None:
    """--deterministic: no floats are made, since cuBLAS sums by the number of rows."""
    packed, _ = write(source, "awq", tmp_path)
    model = load(packed, deterministic=True)
    linear = model.layers[0].down
    assert isinstance(linear, StoredGpuLinear) and linear.batch_invariant and linear._all.floats is None
    x = torch.randn(70, linear.weights[0].inputs, generator=torch.Generator().manual_seed(1)).to(DEVICE)
    assert torch.equal(linear(x)[5:9], linear(x[5:9]))
    own = weight_of(linear)  # as adapters with DoRA ask for it
    torch.testing.assert_close(linear(x), x @ own.T, rtol=1e-4, atol=1e-4)


def test_memory_and_the_log(source: Path, tmp_path: Path, caplog: Any) -> None:
    packed, _ = write(source, "awq", tmp_path)
    with caplog.at_level("INFO", logger="worker"):
        model = load(packed)
    linear = model.layers[0].gate_up
    assert isinstance(linear, StoredGpuLinear)
    (bits,) = linear.weights
    assert bits.numbers.shape == (bits.outputs, 64), "rows are filled up to 128 numbers of 4 bits"
    assert linear._all.floats is not None and len(linear._all.floats) == max(
        own.outputs * own.inputs for one in linear._all.made for own in one.weights
    )
    assert "products have weights of few bits" in caplog.text
    shape, number = shape_of(packed), SimpleNamespace(itemsize=2)
    assert weight_bytes(shape, number, stays=True) < 0.75 * weight_bytes(shape, number)
    caplog.clear()
    with caplog.at_level("INFO", logger="worker"):
        load(write(source, "gptq_g_idx", tmp_path / "other")[0])
    assert "linears became float32, such as model.layers.0.self_attn" in caplog.text
