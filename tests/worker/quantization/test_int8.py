"""Weights of 8 bits: near to float32, and the same in every batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.executor import CpuModel
from actorserve.actors.worker.models.weights import load_model
from actorserve.actors.worker.quantization import int8
from actorserve.actors.worker.quantization.base import LinearTensors
from actorserve.actors.worker.quantization.int8 import Int8Linear
from actorserve.kernels.cpu.native.linear import NativeLinear
from tests.support.selection import slow

from ..cpu.test_runner import prompt
from ..driver import Driver, Sequence, config_for, make_runner

Folders = Callable[..., Path]


def inputs(rows: int, size: int) -> torch.Tensor:
    """Rows of very different sizes, as they are in a residual stream, each with a few large numbers."""
    x = torch.randn(rows, size) * torch.logspace(-2, 2, rows)[:, None]
    x[:, ::97] *= 8
    return x


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("outputs", "size"), [(384, 200), (129, 1024)])
def test_products_are_near(outputs: int, size: int, biased: bool) -> None:
    torch.manual_seed(outputs)
    weight, bias = torch.randn(outputs, size) * 0.05, torch.randn(outputs) if biased else None
    x = inputs(7, size)
    exact = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
    found = Int8Linear(weight, bias)(x)
    apart = (found - exact).norm(dim=1) / exact.norm(dim=1)
    most = 0.06 * int8.LARGEST / int8.steps_of_rows()  # 0.12 where pairs of products would not fit
    assert 0 < apart.max() < most, "for each row, whatever the others are"


def test_a_row_is_the_same_in_every_batch() -> None:
    torch.manual_seed(1)
    linear, x = Int8Linear(torch.randn(300, 256), None), inputs(9, 256)
    together = linear(x)
    for row in range(9):
        assert torch.equal(linear(x[row : row + 1])[0], together[row])
    assert torch.equal(linear(torch.zeros(2, 256)), torch.zeros(2, 300))


def test_it_is_added_to_the_residual() -> None:
    torch.manual_seed(2)
    linear, x, residual = Int8Linear(torch.randn(64, 48), torch.randn(64)), torch.randn(3, 48), torch.randn(3, 64)
    before = residual.clone()
    linear.add_to(residual, x)
    assert torch.equal(residual, before + linear(x))


@pytest.mark.parametrize("kind", ["qwen3", *slow("gemma3", "olmo2")])
def test_a_model_of_8_bits(kind: str, checkpoints: Folders) -> None:
    """Its logits are near those in float32, and its texts do not depend on the batch."""
    folder = checkpoints(kind, initializer_range=0.1)
    options = {"block_size": 16, "quantization": "int8"}
    model = load_model(config_for(folder, **options), resolve_model(config_for(folder)))
    assert isinstance(model, CpuModel) and isinstance(model.layers[0].qkv, Int8Linear)
    exact = load_model(config_for(folder), resolve_model(config_for(folder)))
    x = torch.randn(40, model.shape.hidden_size)
    assert (model.logits(x) - exact.logits(x)).norm() < 0.03 * exact.logits(x).norm()
    sequences = [Sequence(prompt(9 + 7 * number, number), 12) for number in range(4)]
    together = Driver(make_runner(config_for(folder, **options)), seed=3).run(sequences)
    alone = [
        Driver(make_runner(config_for(folder, **options)), budget=64, seed=4).run([Sequence(s.prompt, 12)])[0]
        for s in sequences
    ]
    assert together == alone


def test_another_type_beside_it_is_refused(checkpoints: Folders) -> None:
    config = config_for(checkpoints("llama"), quantization="int8", dtype="bfloat16")
    with pytest.raises(ConfigError, match="--quantization int8: what is not quantised is float32 on a CPU, not"):
        load_model(config, resolve_model(config))


def test_a_row_that_is_no_number_makes_none_of_others() -> None:
    torch.manual_seed(6)
    linear, x = Int8Linear(torch.randn(70, 128), None), inputs(5, 128)
    expected = linear(x)
    x[1, 3], x[2, 5], x[4] = float("nan"), float("inf"), 0
    found = linear(x)
    assert torch.equal(found[[0, 3]], expected[[0, 3]])
    assert not torch.isfinite(found[1]).any() and not torch.isfinite(found[2]).any() and not found[4].any()


def test_what_is_multiplied_are_whole_numbers() -> None:
    """The sums are those of integers, to the last bit of their product with the scales."""
    torch.manual_seed(7)
    weight, x = torch.randn(33, 200), inputs(6, 200)
    linear = Int8Linear(weight, None)
    largest = x.abs().amax(1, keepdim=True)
    whole = (x / (largest / linear.steps)).round().long()
    scale = (weight.abs().amax(1) / 127).double()
    rounded = (weight.double() / scale[:, None]).round().long()
    exact = (whole @ rounded.T).double() * scale * (largest / linear.steps).double()
    torch.testing.assert_close(linear(x).double(), exact, rtol=1e-6, atol=0)


def test_rounding_some_rows_at_a_time_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the type in which the weight is stored, and with scales of a checkpoint."""
    torch.manual_seed(3)
    weight, scales = torch.randn(70, 40).bfloat16(), torch.rand(70) + 0.01
    numbers = torch.randint(-128, 128, (70, 40)) * scales[:, None]

    def of_all() -> list[tuple[torch.Tensor, torch.Tensor]]:
        made = [torch.zeros(70, 56, dtype=torch.int8) for _ in range(3)]
        given = ((weight, None), (weight.float(), None), (numbers, scales))
        return [(one, int8.round_into(one, w, own)) for one, (w, own) in zip(made, given, strict=True)]

    whole = of_all()
    monkeypatch.setattr(int8, "AT_ONCE", 3 * 40)
    for one, other in zip(whole, of_all(), strict=True):
        assert torch.equal(one[0], other[0]) and torch.equal(one[1], other[1])
    ints, again = whole[0][0], whole[1]
    assert torch.equal(ints, again[0])
    apart = (ints * again[1][:, None])[:, :40] - weight.double()
    assert (apart.abs() <= again[1][:, None] * 0.51).all(), "a half step, for numbers below 0 as well"
    assert not ints[:, 40:].any() and ints.abs().amax(1).eq(127).all()


@pytest.mark.skipif(int8.steps_of_rows() < int8.LARGEST, reason="torch rounds rows to fewer numbers on this processor")
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.usefixtures("native_kernels")
def test_both_kinds_of_kernels_have_the_same_bits(biased: bool) -> None:
    torch.manual_seed(8)
    weight, bias = torch.randn(130, 200), torch.randn(130)
    tensors = LinearTensors(lambda kind, dtype: weight if kind == "weight" else bias, torch.float32, biased)
    own, x = int8.cpu_linear(tensors), inputs(40, 200)
    assert isinstance(own, NativeLinear)
    for rows in (1, 3, 40):
        assert torch.equal(own(x[:rows]), Int8Linear(weight, bias if biased else None)(x[:rows]))
