"""Products with weights of few bits against what their numbers mean, in the interpreter where there is no GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.linear.stored_linear import MOST_ROWS, as_floats, stored_linear  # noqa: E402
from actorserve.kernels.triton.linear.stored_weights import StoredWeight, decoded, stored_weight  # noqa: E402

TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}
E2M1 = [0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6]
KINDS: dict[str, tuple[str, int, dict[str, Any]]] = {  # form, group (0: all of a row), what else it has
    "4 bits, groups of 32, zeros": ("bits4", 32, {"zeros": True}),
    "4 bits, groups of 64": ("bits4", 64, {"zero": 8}),
    "4 bits, groups of 128, zeros": ("bits4", 128, {"zeros": True, "scales": torch.float16}),
    "4 bits, a scale a row, zeros": ("bits4", 0, {"zeros": True}),
    "8 bits, a scale a row": ("bits8", 0, {"zero": 128}),
    "8 bits, groups of 32, zeros": ("bits8", 32, {"zeros": True, "scales": torch.bfloat16}),
    "fp8, a scale a row": ("e4m3", 0, {}),
    "fp8, groups of 128": ("e4m3", 128, {}),
    "fp4, groups of 16, factors": ("e2m1", 16, {"factors": True}),
    "fp4, groups of 32": ("e2m1", 32, {"scales": torch.bfloat16}),
    "4 bits, minima": ("bits4", 32, {"zero": 8, "scales": torch.bfloat16, "minima": True}),
    "4 bits, a scale and a minimum a row": ("bits4", 0, {"minima": True}),
    "4 bits, minima, steps of 8 groups": ("bits4", 32, {"minima": True, "together": 8}),
    "4 bits, groups of 16, steps of 8 of them": ("bits4", 16, {"zero": 4, "together": 8}),
    "4 bits, minima, steps of 3 groups": ("bits4", 32, {"minima": True, "together": 3}),  # halves of bytes differ
    "8 bits, groups of 16, steps of 8 of them": ("bits8", 16, {"zero": 32, "together": 8, "factors": True}),
}


def made(kind: str, outputs: int, inputs: int) -> tuple[StoredWeight, Tensor]:
    """A weight, and in float64 what its numbers mean, by definition."""
    form, group, more = KINDS[kind]
    random = torch.Generator().manual_seed(len(kind))
    group = group or inputs
    groups, most = -(-inputs // group), 16 if form in ("bits4", "e2m1") else 256
    numbers = torch.randint(0, most, (outputs, inputs), generator=random)
    scales = (torch.rand(outputs, groups, generator=random) / most + 0.2 / most).to(more.get("scales", torch.float32))
    minima = torch.rand(outputs, groups, generator=random).to(scales.dtype) if "minima" in more else None
    steps, above = (scales.double(), minima if minima is None else minima.double()), None
    if together := more.get("together", 0):
        above = torch.rand(outputs, -(-groups // together), 1 if minima is None else 2, generator=random).half() / 60
        scales = torch.randint(0, 64, scales.shape, generator=random).to(torch.uint8)
        minima = None if minima is None else torch.randint(0, 64, scales.shape, generator=random).to(torch.uint8)
        wide = above.double().repeat_interleave(together, 1)[:, :groups]
        steps = scales * wide[..., 0], None if minima is None else minima * wide[..., 1]
    zeros = torch.randint(0, most, (outputs, groups), generator=random) if "zeros" in more else None
    factors = torch.rand(outputs, generator=random) + 0.5 if "factors" in more else None
    values = numbers.double() - more.get("zero", 0)
    if form == "e4m3":
        numbers[numbers % 128 == 127] = 56  # these are no numbers
        values = numbers.to(torch.uint8).view(torch.float8_e4m3fn).double()
    if form == "e2m1":
        values = torch.tensor(E2M1).double()[numbers]
    of = torch.arange(inputs) // group
    if zeros is not None:
        values = values - zeros[:, of]
    exact = values * steps[0][:, of]
    if steps[1] is not None:
        exact = exact - steps[1][:, of]
    exact = exact * (1 if factors is None else factors.double()[:, None])
    given = None if zeros is None else zeros.to(torch.uint8)
    weight = stored_weight(
        form, numbers, scales, group, given, more.get("zero", 0), factors, minima, above, more.get("together", 0)
    )
    return weight.to(DEVICE), exact.to(DEVICE)


def inputs_of(rows: int, inputs: int, dtype: torch.dtype) -> Tensor:
    return torch.randn(rows, inputs, generator=torch.Generator().manual_seed(rows)).to(DEVICE, dtype)


def close(found: Tensor, x: Tensor, exact: Tensor, bias: Tensor | None = None) -> None:
    wanted = x.double() @ exact.T + (0 if bias is None else bias.double())
    scale = float(wanted.abs().max())
    tolerance = TOLERANCE[found.dtype]
    torch.testing.assert_close(found.double(), wanted, rtol=tolerance, atol=tolerance * scale)


@pytest.mark.parametrize("kind", KINDS)
def test_a_product_of_few_rows(kind: str) -> None:
    """Rows that lie apart, outputs and inputs that fill no tile, and what they mean by torch alone."""
    weight, exact = made(kind, 37, 200)
    torch.testing.assert_close(decoded(weight).double(), exact, rtol=1e-6, atol=1e-6 if "minim" in kind else 0)
    bias = inputs_of(1, 37, torch.float32)[0]
    for rows, dtype in ((1, torch.float32), (3, torch.bfloat16), (17, torch.float16), (16, torch.bfloat16)):
        x = inputs_of(rows, 220, dtype)
        x[:, 200:] = float("nan")
        x = x[:, :200]
        close(stored_linear(x, weight), x, exact)
        close(stored_linear(x, weight, bias), x, exact, bias)
        wide = torch.zeros(rows, 50, dtype=dtype, device=DEVICE)
        stored_linear(x, weight, bias, out=wide[:, 3:40])
        assert torch.equal(wide[:, 3:40], stored_linear(x, weight, bias)) and not wide[:, [2, 40]].any()


@pytest.mark.parametrize("kind", KINDS)
def test_floats_are_made_for_many_rows(kind: str) -> None:
    weight, exact = made(kind, 70, 200)
    floats = torch.full((70 * 200 + 5,), float("nan"), device=DEVICE)
    found = as_floats(weight, floats, torch.float32)
    torch.testing.assert_close(found.double(), exact, rtol=1e-6, atol=1e-6 if "minim" in kind else 0)
    assert floats[-5:].isnan().all(), "what lies behind is another's"
    x = inputs_of(MOST_ROWS + 1, 200, torch.float32)
    close(stored_linear(x, weight, floats=floats), x, exact)
    assert torch.equal(found, as_floats(weight, floats, torch.float32)), "nothing has changed the weight"
    half = floats.to(torch.float16)
    torch.testing.assert_close(as_floats(weight, half, torch.float16).double(), exact, rtol=1e-3, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_64_rows(dtype: torch.dtype) -> None:
    weight, exact = made("4 bits, groups of 32, zeros", 48, 128)
    x = inputs_of(MOST_ROWS, 128, dtype)
    close(stored_linear(x, weight, floats=torch.zeros(1, device=DEVICE)), x, exact)


@pytest.mark.parametrize("kind", ["4 bits, groups of 32, zeros", "8 bits, a scale a row", "fp8, groups of 128"])
def test_a_row_has_the_same_bits_in_every_batch(kind: str) -> None:
    weight, _ = made(kind, 40, 130)
    x = inputs_of(70, 130, torch.bfloat16)
    floats = torch.empty(40 * 130, dtype=torch.bfloat16, device=DEVICE)
    together = stored_linear(x, weight, floats=floats, fixed=True)
    for some in (slice(0, 1), slice(3, 19), slice(6, 70)):
        assert torch.equal(stored_linear(x[some], weight, floats=floats, fixed=True), together[some])


def test_what_it_cannot_take_is_refused() -> None:
    weight, _ = made("4 bits, groups of 32, zeros", 40, 128)
    x, numbers, scales = inputs_of(2, 128, torch.float32), torch.zeros(4, 128), torch.ones(4, 4)
    for given, said in (((x[0],), "x "), ((x[:, :60],), "x "), ((x, x[0]), "bias")):
        with pytest.raises(ValueError, match=said):
            stored_linear(given[0], weight, *given[1:])
    with pytest.raises(ValueError, match="out "):
        stored_linear(x, weight, out=x)
    with pytest.raises(ValueError, match="do not hold"):
        as_floats(weight, x.flatten(), torch.float32)
    changes: list[tuple[dict[str, Any], str]] = [
        ({"group": 24, "scales": torch.ones(4, 6)}, "multiples of 16"),
        ({"scales": torch.ones(4, 5)}, "scales"),
        ({"zeros": torch.ones(4, 4)}, "zeros"),
        ({"factors": torch.ones(3)}, "factors"),
        ({"form": "bits3"}, "bits3"),
        ({"minima": torch.ones(4, 5)}, "minima"),
        ({"above": torch.ones(4, 1, 1).half()}, "scales"),
        ({"above": torch.ones(4, 2, 1).half(), "scales": torch.ones(4, 4).to(torch.int8), "together": 4}, "above"),
    ]
    usual: dict[str, Any] = {"form": "bits4", "numbers": numbers, "scales": scales, "group": 32}
    for change, said in changes:
        with pytest.raises(ValueError, match=said):
            stored_weight(**usual | change)
