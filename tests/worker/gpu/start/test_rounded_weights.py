"""Weights of few bits that a GPU's worker makes at load (--quantization), and GGUF files in theirs.

What they mean, which products have them, and that answers are those of a CPU with the same numbers.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from safetensors.numpy import save_file as save_arrays
from safetensors.torch import load_file, save_file

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
if DEVICE.type == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.actors.model.checks.device import check_device  # noqa: E402
from actorserve.actors.model.config_json import read_architecture  # noqa: E402
from actorserve.actors.model.gguf.gpu_bytes import BYTES, gpu_bytes  # noqa: E402
from actorserve.actors.model.info import read_json, resolve_model  # noqa: E402
from actorserve.actors.model.layers import Kind  # noqa: E402
from actorserve.actors.model.memory.dtypes import architecture_on_gpu  # noqa: E402
from actorserve.actors.model.memory.machine import weight_bytes  # noqa: E402
from actorserve.actors.model.sharding import shard_shape  # noqa: E402
from actorserve.actors.options.config import ConfigError  # noqa: E402
from actorserve.actors.worker import inspection  # noqa: E402
from actorserve.actors.worker.formats.gguf_bits import READERS, GgufBits  # noqa: E402
from actorserve.actors.worker.formats.parts import together  # noqa: E402
from actorserve.actors.worker.gpu.executor import GpuModel  # noqa: E402
from actorserve.actors.worker.gpu.layers.stored import StoredGpuLinear  # noqa: E402
from actorserve.actors.worker.models.gguf_blocks import DECODERS  # noqa: E402
from actorserve.actors.worker.models.sharding import Alone, shard  # noqa: E402
from actorserve.actors.worker.models.weights import open_checkpoint  # noqa: E402
from actorserve.actors.worker.quantization import fp8, int4, int8  # noqa: E402
from actorserve.actors.worker.quantization.none import CublasLinear  # noqa: E402
from actorserve.kernels.triton.linear.scaled_linear import round_rows, scaled_linear  # noqa: E402
from actorserve.kernels.triton.linear.stored_weights import decoded  # noqa: E402
from tests.support.compiler import cache_with_kernels  # noqa: E402
from tests.support.gpu.scaled_products import needs_them  # noqa: E402
from tests.support.models.gguf.files import convert  # noqa: E402
from tests.support.models.gguf.formats import random_blocks  # noqa: E402
from tests.support.models.weight_formats import write  # noqa: E402
from tests.support.selection import slow  # noqa: E402

from ...driver import Driver, config_for, make_runner  # noqa: E402
from .test_stored_weights import answers, load, never, sequences  # noqa: E402

Folders = Callable[..., Path]
WIDE = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "initializer_range": 0.15}


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where folders of GGUF files are made."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_with_kernels(tmp_path / "cache")))


def products(model: GpuModel, layer: int = 0) -> list[Any]:
    own = model.layers[layer]
    return [own.qkv, own.out, own.gate_up, own.down]


# --- made at load --------------------------------------------------------------------------------------------------


def meant_int8(weight: torch.Tensor) -> torch.Tensor:
    whole = torch.empty(weight.shape, dtype=torch.int8)
    scales = int8.round_into(whole, weight, None)
    return whole.float().mul_(scales.float()[:, None])


def meant_int4(weight: torch.Tensor) -> torch.Tensor:
    numbers, scales = int4.rounded(torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % 32)))
    scale, middle = scales.float().transpose(0, 1).unbind(2)
    groups: torch.Tensor = (numbers.float().unflatten(1, (-1, 32)) - 8) * scale[..., None] + middle[..., None]
    return groups.flatten(1)[:, : weight.shape[1]]


MEANT: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "int8": meant_int8,
    "int4": meant_int4,
    "fp8": lambda weight: fp8.meant(weight, torch.float32),
}


@pytest.mark.parametrize("method", [*MEANT])
def test_bits_are_those_of_a_cpu(method: str, checkpoints: Folders, tmp_path: Path) -> None:
    """Of all linear layers, what makes logits among them; answers are those of the same numbers in float32."""
    source = checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=1, tie_word_embeddings=False)
    model = load(source, quantization=method)
    assert all(isinstance(one, StoredGpuLinear) for one in (*products(model), model.head))
    exact = load_file(source / "model.safetensors")
    specs = read_architecture(read_json(source / "config.json")).specs()
    rounded = {name for name, spec in specs.items() if spec.kind is Kind.WEIGHT}
    exact |= {name: MEANT[method](exact[name]) for name in rounded}
    own = model.layers[0]
    assert isinstance(own.gate_up, StoredGpuLinear)
    up = torch.cat([exact[f"model.layers.0.mlp.{part}_proj.weight"] for part in ("gate", "up")])
    torch.testing.assert_close(own.gate_up.weight.cpu(), up, rtol=1e-6, atol=1e-7)
    plain = Path(shutil.copytree(source, tmp_path / "plain"))
    save_file(exact, plain / "model.safetensors", metadata={"format": "pt"})
    wanted = Driver(make_runner(config_for(plain, block_size=16)), seed=3).run(sequences())
    assert answers(model) == wanted
    values, number = read_json(source / "config.json"), SimpleNamespace(itemsize=4)
    few, _ = architecture_on_gpu(config_for(source), read_architecture(values, quantization=method))
    assert weight_bytes(few, number) < 0.6 * weight_bytes(read_architecture(values), number)


def test_experts_are_rounded_and_routers_are_not(checkpoints: Folders) -> None:
    source = checkpoints("qwen3_moe", num_hidden_layers=1)
    for method, form in (("int8", "int8"), ("int4", "int4"), ("fp8", "floats")):
        model = load(source, quantization=method)
        moe = model.layers[0].moe
        assert moe is not None and (moe.up.format, moe.down.format) == (form, form)
        assert isinstance(moe.router, CublasLinear) and isinstance(model.layers[0].qkv, StoredGpuLinear)
        shape = read_architecture(read_json(source / "config.json"), quantization=method)
        kept = architecture_on_gpu(config_for(source), shape)[0].methods()
        expert = next(name for name in kept if ".experts.0." in name)
        assert (kept[expert].bytes_per_weight is None) == (form == "floats"), "as check counts them"


def test_a_quantised_checkpoint_becomes_what_is_asked_for(checkpoints: Folders, tmp_path: Path) -> None:
    packed, _ = write(checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=2), "awq", tmp_path)
    model = load(packed, quantization="int8")
    assert {weight.form for one in products(model) for weight in one.weights} == {"bits8"}


@needs_them
@pytest.mark.parametrize(("kept", "count"), [(False, 9), *slow((True, 6))])
def test_inputs_of_8_bits(kept: bool, count: int, checkpoints: Folders, tmp_path: Path, caplog: Any) -> None:
    """Steps of over 64 tokens multiply e4m3 on both sides, of weights made at load or of a checkpoint's; and no floats
    are made of these."""
    source = checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=2, tie_word_embeddings=False)
    with caplog.at_level("INFO", logger="worker"):
        folder = write(source, "fp8_channel", tmp_path)[0] if kept else source
        model = load(folder, quantization="w8a8_fp8", dtype="bfloat16")
    assert f"{count} of them with inputs of 8 bits in steps of over 64 tokens" in caplog.text
    linear: Any = model.layers[0].gate_up
    x = torch.randn(70, linear.weights[0].inputs, generator=torch.Generator().manual_seed(1)).to(DEVICE).bfloat16()
    exact, many, few = x.double() @ linear.weight.double().T, linear(x), linear(x[:64])
    own, plain = ((made.double() - exact[: len(made)]).norm() / exact[: len(made)].norm() for made in (many, few))
    assert plain < 5e-3 < own < 0.05, "one has rounded inputs, and one not"
    wanted, _ = round_rows(x, x.shape[1])
    assert torch.equal(many, scaled_linear(x, linear.scaled[0])) and wanted.dtype == torch.float8_e4m3fn
    assert linear._all.floats is None or len(linear._all.floats) == 0
    assert [len(tokens) for tokens in answers(model, torch.bfloat16)] == [4, 4, 4]


@needs_them
def test_where_inputs_have_no_8_bits(checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = checkpoints("qwen3", initializer_range=0.1, num_hidden_layers=2, tie_word_embeddings=False)
    with pytest.raises(ConfigError, match="no weights here are e4m3"):
        load(write(source, "awq", tmp_path / "awq")[0], quantization="w8a8_fp8", dtype="bfloat16")
    with pytest.raises(ConfigError, match="w8a8_fp8: with --dtype bfloat16 only, not float32"):
        load(source, quantization="w8a8_fp8")
    with monkeypatch.context() as patch:
        patch.setattr(torch, "_scaled_mm", Mock(side_effect=RuntimeError("Rowwise scaling is not supported")))
        with pytest.raises(ConfigError, match=r"for this GPU: Rowwise scaling is not supported; fp8 goes"):
            load(source, quantization="w8a8_fp8", dtype="bfloat16")
    for on_gpu, given, said in ((False, {}, "on a GPU only"), (True, {"deterministic": True}, "--deterministic: not")):
        with pytest.raises(ConfigError, match=said):
            check_device(config_for(source, quantization="w8a8_fp8", **given), on_gpu)


def test_what_check_says(checkpoints: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As the worker keeps them; of a file in what its types take."""
    monkeypatch.setattr(inspection, "uses_gpu", lambda config: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8 << 30, 8 << 30))
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    source = checkpoints("llama", **WIDE)
    convert(source, tmp_path / "model.gguf", medium)

    def told(folder: Path, method: str) -> tuple[str, int]:
        config = config_for(folder, quantization=method, dtype="bfloat16", block_size=16)
        facts = {key: one for part in inspection.inspect(config, resolve_model(config)) for key, one in part.items()}
        return facts["dtype"], facts["weights_bytes"]

    name, whole = told(source, "none")
    assert name == "bfloat16"
    for method in MEANT:
        name, few = told(source, method)
        assert name == f"{method} and bfloat16" and few < 0.65 * whole
    name, few = told(tmp_path / "model.gguf", "auto")
    assert name == "bfloat16 (of gguf)" and few < 0.5 * whole
    assert told(tmp_path / "model.gguf", "none") == ("bfloat16", whole)


# --- GGUF ----------------------------------------------------------------------------------------------------------


def medium(name: str) -> str:
    """As llama.cpp mixes Q4_K_M: v among q and k of another type."""
    return "Q6_K" if "lm_head" in name or ".1.self_attn.v" in name or ".1.mlp.down" in name else "Q4_K"


@pytest.mark.parametrize("kind", READERS)
def test_a_type_is_converted_without_loss(kind: str) -> None:
    """To the last bit; and what it takes is what check counts."""
    width = 32 if kind in ("Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "MXFP4") else 256
    rows, each = 12, 1024 // width
    blocks = torch.frombuffer(bytearray(random_blocks(kind, rows * each)), dtype=torch.uint8).view(rows * each, -1)
    own = READERS[kind](blocks)
    minima = None if own.minima is None else own.minima.reshape(rows, -1)
    above = None if own.above is None else own.above.reshape(rows, -1, own.above.shape[-1])
    wide = own._replace(numbers=own.numbers.reshape(rows, -1), scales=own.scales.reshape(rows, -1))
    (found,) = together([wide._replace(minima=minima, above=above)])
    wanted = DECODERS[kind](blocks).view(rows, -1)
    assert torch.equal(decoded(found), wanted)
    assert found.bytes == BYTES[kind] * wanted.numel()


def test_all_types_that_stay_are_counted() -> None:
    assert BYTES.keys() == READERS.keys()


@pytest.mark.parametrize(
    ("kind", "talks"), [("Q4_K_M", False), *slow(("Q4_K_M", True), ("Q4_0", True), ("Q8_0", True))]
)
def test_a_file(kind: str, talks: bool, checkpoints: Folders, tmp_path: Path, caplog: Any) -> None:
    """Its numbers, with heads whose numbers are paired in the file, alone and cut for two workers; and what it says."""
    source = checkpoints("llama", **WIDE, num_attention_heads=8)
    file = tmp_path / "model.gguf"
    means = convert(source, file, medium if kind == "Q4_K_M" else lambda name: kind)
    with caplog.at_level("INFO", logger="worker"):
        model = load(file, quantization="auto")
    assert "gguf: 9 products have weights of few bits" in caplog.text and "linears became" not in caplog.text
    assert [len(one.weights) for one in products(model, 1)] == ([2, 1, 1, 1] if kind == "Q4_K_M" else [1] * 4)
    for path, one in (("self_attn.o_proj", model.layers[1].out), ("mlp.down_proj", model.layers[1].down)):
        assert isinstance(one, StoredGpuLinear)
        assert torch.equal(one.weight.cpu(), torch.from_numpy(means[f"model.layers.1.{path}.weight"]))
    if talks:
        plain = Path(shutil.copytree(source, tmp_path / "plain"))
        save_arrays(means, plain / "model.safetensors", metadata={"format": "pt"})
        wanted = Driver(make_runner(config_for(plain, block_size=16)), seed=3).run(sequences())
        assert answers(model) == wanted
    assert isinstance(load(file, quantization="none").layers[0].qkv, CublasLinear)
    assert isinstance(load(file, quantization="gguf").layers[0].qkv, StoredGpuLinear)
    _check_parts(file)


def _check_parts(file: Path) -> None:
    folder = Path(resolve_model(config_for(file, quantization="none")).folder)
    shape = read_architecture(read_json(folder / "config.json"))
    kept = gpu_bytes(folder)
    assert {name for name, spec in shape.specs().items() if spec.kind is Kind.WEIGHT} <= kept.keys()
    number = SimpleNamespace(itemsize=2)
    assert weight_bytes(shape, number, own_bytes=kept) < 0.75 * weight_bytes(shape, number)
    for place in (Alone(0, 2), Alone(1, 2)):
        bits, get = GgufBits(folder, shape, place, False), shard(open_checkpoint(folder, shape), shape, place)
        layer = shard_shape(shape, 2).layer_at(1)
        for linears in (layer.qkv, layer.gate_up, (layer.out,), (layer.down,)):
            found = bits.of(linears, never)
            whole = linears[0].columns == layer.qkv[0].columns
            assert bool(found) == whole or (found and not whole), "columns of 256 numbers are cut in two"
            if found:
                exact = torch.cat([get(f"{linear.name}.weight") for linear in linears])
                assert torch.equal(torch.cat([decoded(own) for own in found]), exact)
    head = shape.head
    assert not GgufBits(folder, shape, Alone(0, 2), False).of([head], never), "its rows may be filled up"
