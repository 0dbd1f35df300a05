"""Weights of 4 bits: what their numbers mean is what is multiplied with, and they take less than 8 bits do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.memory.dtypes import NUMBERS
from actorserve.actors.model.memory.machine import weight_bytes
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.models.weights import load_model
from actorserve.actors.worker.quantization import int4
from actorserve.actors.worker.quantization.int4 import GROUP, Int4Linear, rounded

from ..cpu.test_runner import prompt
from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]


def meant(weight: torch.Tensor) -> torch.Tensor:
    """What 4 bits say of a weight, in float64."""
    padded = torch.nn.functional.pad(weight.float(), (0, -weight.shape[1] % GROUP))
    numbers, scales = rounded(padded)
    scale, middle = scales.double().unbind(2)
    groups = (numbers.double().unflatten(1, (-1, GROUP)) - 8) * scale.t()[:, :, None] + middle.t()[:, :, None]
    found: torch.Tensor = groups.flatten(1)[:, : weight.shape[1]]
    return found


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("outputs", "inputs"), [(384, 256), (130, 200), (7, 33)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_products_are_those_of_the_numbers(outputs: int, inputs: int, biased: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(outputs)
    weight, x = (torch.randn(outputs, inputs) * 0.05).to(dtype), torch.randn(5, inputs).bfloat16()
    bias = torch.randn(outputs).bfloat16() if biased else None
    linear = Int4Linear(weight, bias)
    exact = x.double() @ meant(weight).t() + (0 if bias is None else bias.double())
    assert (linear(x) - exact).norm() < 0.01 * exact.norm()
    residual = torch.randn(5, outputs).bfloat16()
    before = residual.clone()
    linear.add_to(residual, x)
    assert torch.equal(residual, before + linear(x))


def test_numbers_are_near_to_the_weights() -> None:
    torch.manual_seed(1)
    weight = torch.randn(64, 128)
    assert 0 < (meant(weight) - weight).norm() / weight.norm() < 0.09
    steps = torch.arange(GROUP).float().remainder(16).sub(3).expand(16, GROUP)  # 16 values: none is changed
    assert torch.equal(meant(steps), steps.double())
    assert not meant(torch.zeros(16, GROUP)).any()


def test_it_is_packed_some_rows_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(2)
    weight = torch.randn(500, 96)
    whole = Int4Linear(weight, None)
    monkeypatch.setattr(int4, "AT_ONCE", 1)
    parts = Int4Linear(weight, None)
    assert torch.equal(whole.weight, parts.weight) and torch.equal(whole.scales, parts.scales)


def test_a_model_of_4_bits(checkpoints: Folders) -> None:
    folder = checkpoints("qwen3", initializer_range=0.1)
    config = config_for(folder, block_size=16, quantization="int4", dtype="auto")
    model = load_model(config, resolve_model(config))
    assert isinstance(model, CpuModel) and isinstance(model.layers[0].qkv, Int4Linear)
    assert isinstance(model.head, Int4Linear) and model.dtype == torch.float32
    eight = load_model(config_for(folder, quantization="int8"), resolve_model(config))
    size, large = weight_bytes(model.shape, NUMBERS["float32"]), weight_bytes(eight.shape, NUMBERS["float32"])
    assert size < large
    exact = load_model(config_for(folder), resolve_model(config))
    x = torch.randn(40, model.shape.hidden_size)
    own = model.logits(x)
    assert (own - exact.logits(x)).norm() < 0.15 * exact.logits(x).norm()
    (tokens,) = Driver(make_runner(config), seed=3).run([Sequence(prompt(9, 0), 6)])
    assert len(tokens) == 6


def test_what_it_cannot_be_beside(checkpoints: Folders) -> None:
    folder = checkpoints("llama")
    info = resolve_model(config_for(folder))
    with pytest.raises(ConfigError, match="--deterministic: not with --quantization int4"):
        load_model(config_for(folder, quantization="int4", dtype="auto", deterministic=True), info)
    with pytest.raises(ConfigError, match="--quantization int4: what is not quantised is float32 on a CPU, not"):
        load_model(config_for(folder, quantization="int4", dtype="bfloat16"), info)
