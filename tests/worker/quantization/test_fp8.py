"""Weights of floats of 8 bits, made at load: the numbers that they mean are what a CPU computes with."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.layers import Kind
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter.load import types_of
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.inspection import inspect
from actorserve.actors.worker.models.weights import load_decoder, load_model
from actorserve.actors.worker.quantization import fp8
from actorserve.kernels.cpu.native.linear import NativeLinear

from ..cpu.test_runner import prompt
from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]
LEVELS = (
    sorted(  # of e4m3 without sign, by its definition: 4 bits of exponent, of which 15 with 7 is no number, 3 beside
        (2.0**-6 * mantissa / 8 if power == 0 else 2.0 ** (power - 7) * (1 + mantissa / 8))
        for power in range(16)
        for mantissa in range(8)
        if (power, mantissa) != (15, 7)
    )
)


def meaning(weight: torch.Tensor) -> torch.Tensor:
    """What 8 bits say of a weight, in float64, by the definition of the type and its nearest numbers."""
    exact, levels = weight.double(), torch.tensor(LEVELS, dtype=torch.float64)
    least = (exact.abs().amax(1) / 448).tolist()
    scales = torch.tensor([_four_digits(one) for one in least], dtype=torch.float64)[:, None]
    edges, scaled = (levels[1:] + levels[:-1]) / 2, exact.abs() / scales
    low, high = torch.searchsorted(edges, scaled), torch.searchsorted(edges, scaled, right=True)
    near = torch.where(low % 2 == 0, low, high)  # between two the one whose last bit is 0
    return levels[near] * scales * exact.sign()


def _four_digits(number: float) -> float:
    """The least number of four binary digits that is not less."""
    power = -60
    while 15 * 2.0**power < number:
        power += 1
    return next(digits * 2.0**power for digits in range(1, 16) if digits * 2.0**power >= number)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_numbers_are_those_of_the_type(dtype: torch.dtype) -> None:
    weight = (torch.randn(40, 100, generator=torch.Generator().manual_seed(1)) * 0.05).to(dtype)
    weight[0], weight[1, 3] = 0, 7.0
    wanted = meaning(weight[1:])
    for made in (torch.float32, torch.bfloat16):
        found = fp8.meant(weight, made)
        assert torch.equal(found[1:].double(), wanted) and not found[0].any(), "bfloat16 holds them all"
    assert 0 < (wanted - weight[1:]).norm() / weight[1:].norm() < 0.03


def rounded_copy(folder: Path, target: Path) -> Path:
    """The same model with what fp8 makes of its linear layers, in float32."""
    plain = Path(shutil.copytree(folder, target))
    shape = read_architecture(json.loads((folder / "config.json").read_text()))
    found = load_file(folder / "model.safetensors")
    for name, spec in shape.specs().items():
        if spec.kind is Kind.WEIGHT:
            found[name] = meaning(found[name]).float()
    save_file(found, plain / "model.safetensors", metadata={"format": "pt"})
    return plain


@pytest.mark.parametrize("impl", ["auto", "transformers"])
def test_a_model_of_8_bits(impl: str, checkpoints: Folders, tmp_path: Path) -> None:
    folder = checkpoints("qwen3", initializer_range=0.1)
    plain = rounded_copy(folder, tmp_path / "plain")
    config = config_for(folder, block_size=16, quantization="fp8", model_impl=impl)
    wanted = config_for(plain, block_size=16, model_impl=impl)
    sequences = [prompt(9 + 7 * number, number) for number in range(3)]
    found, known = (
        Driver(make_runner(one), seed=3).run([Sequence(tokens, 12) for tokens in sequences]) for one in (config, wanted)
    )
    assert found == known
    ours, theirs = (load_decoder(one, resolve_model(one)) for one in (config, wanted))
    assert ours.quantised is False, "keys and values are of the type that is computed in"
    if isinstance(ours, CpuModel) and isinstance(theirs, CpuModel):
        x = torch.randn(40, ours.shape.hidden_size)
        torch.testing.assert_close(ours.logits(x), theirs.logits(x), rtol=1e-5, atol=1e-5)


@pytest.mark.usefixtures("native_kernels")
def test_our_own_kernels_read_16_bits(checkpoints: Folders) -> None:
    folder = checkpoints("qwen3", initializer_range=0.1)
    config = config_for(folder, quantization="fp8")
    model = load_model(config, resolve_model(config))
    linear = model.layers[0].qkv
    assert isinstance(linear, NativeLinear) and linear.weight is not None and linear.weight.dtype == torch.bfloat16
    name, weight = "model.layers.0.mlp.down_proj.weight", load_file(folder / "model.safetensors")
    x = torch.randn(5, weight[name].shape[1])
    torch.testing.assert_close(model.layers[0].down(x), x @ meaning(weight[name]).float().T, rtol=1e-5, atol=1e-5)


def test_it_is_refused_where_products_stay_a_models_own(checkpoints: Folders) -> None:
    folder = checkpoints("qwen3")
    found: Any = SimpleNamespace(verdict=SimpleNamespace(improved=False), config=SimpleNamespace(dtype=torch.float32))
    found.config.get_text_config = lambda decoder: found.config
    for method in ("fp8", "int8"):
        config = config_for(folder, quantization=method)
        with pytest.raises(ConfigError, match=f"--quantization {method}: Qwen3ForCausalLM is right with its own"):
            types_of(config, resolve_model(config), found)


def test_what_check_says(checkpoints: Folders) -> None:
    """A checkpoint of another format is refused, and one that is not stays with what it was."""
    folder = checkpoints("qwen3")
    config = config_for(folder, quantization="fp8", device="cpu")
    facts = {key: value for part in inspect(config, find_model(config)) for key, value in part.items()}
    assert facts["dtype"] == "fp8 and float32"
    with pytest.raises(ConfigError, match=r"--quantization awq: the model's weights are not quantised.*int8 or fp8"):
        find_model(config_for(folder, quantization="awq"))
    values = json.loads((folder / "config.json").read_text())
    values["quantization_config"] = {"quant_method": "awq", "bits": 4, "group_size": 16, "version": "gemm"}
    with pytest.raises(ConfigError, match="--quantization fp8: the model's weights are awq"):
        read_architecture(values, quantization="fp8")
