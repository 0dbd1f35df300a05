"""Products whose rows have the same bits in every batch, in the interpreter where there is no GPU."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.linear.fixed_linear import fixed_linear, fixed_products, tiles_of  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 40, 64), (70, 33, 100), (5, 7, 3)])
@pytest.mark.parametrize("biased", [False, True])
def test_a_product(dtype: torch.dtype, rows: int, outputs: int, inputs: int, biased: bool) -> None:
    x, weight = random(rows, inputs, dtype=dtype), random(outputs, inputs, dtype=dtype, seed=1) / 8
    bias = random(outputs, dtype=dtype, seed=2) if biased else None
    wanted = x.double() @ weight.double().T + (0 if bias is None else bias.double())
    found = fixed_linear(x, weight, bias)
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype])
    exact = fixed_linear(x, weight, bias, wide=True)
    assert exact.dtype == torch.float32
    torch.testing.assert_close(exact.double(), wanted, rtol=1e-5, atol=1e-5)


def test_products_of_heads() -> None:
    """Each with its own weight, of parts of wider rows; a row has the same bits alone."""
    x, weights = random(70, 3, 40)[..., :24], random(3, 20, 24, seed=1)
    out = torch.zeros(70, 3, 50, device=DEVICE)
    found = fixed_products(x, weights, out[..., :20])
    torch.testing.assert_close(found, torch.einsum("rhk,hnk->rhn", x, weights), rtol=1e-5, atol=1e-5)
    assert found.data_ptr() == out.data_ptr() and not out[..., 20:].any()
    assert torch.equal(fixed_products(x[65:66], weights, torch.empty(1, 3, 20, device=DEVICE))[0], found[65])
    for change in ({"weights": weights[:2]}, {"out": out}, {"x": x.double()}):
        with pytest.raises(ValueError, match=r"must be floats|do not fit"):
            fixed_products(**({"x": x, "weights": weights, "out": out[..., :20]} | change))


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_has_the_same_bits_in_every_batch(dtype: torch.dtype) -> None:
    """Alone, among others, and at whatever place of a tile; what is beside it may be no number."""
    x, weight = random(150, 200, dtype=dtype), random(40, 200, dtype=dtype, seed=1)
    together = fixed_linear(x, weight)
    for row in (0, 1, 63, 64, 149):
        assert torch.equal(fixed_linear(x[row : row + 1], weight)[0], together[row])
    for count in (2, 17, 64, 65):
        assert torch.equal(fixed_linear(x[-count:], weight), together[-count:])
    spoilt = x.clone()
    spoilt[::2] = float("nan")
    assert torch.equal(fixed_linear(spoilt, weight)[1::2], together[1::2])


def test_rows_apart_and_none() -> None:
    wide = random(4, 100)
    wide[:, 60:] = float("nan")
    weight = random(30, 60, seed=1)
    torch.testing.assert_close(fixed_linear(wide[:, :60], weight), wide[:, :60] @ weight.T, rtol=1e-5, atol=1e-5)
    assert fixed_linear(random(0, 60), weight).shape == (0, 30)


def test_tiles_follow_from_the_weight() -> None:
    assert [tiles_of(torch.bfloat16, outputs).outputs for outputs in (1024, 6144, 8192, 28672)] == [32, 32, 64, 128]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": random(64)}, "x "),
        ({"x": random(64, 2).T}, "x "),
        ({"weight": random(32, 60)}, "weight"),
        ({"weight": random(32, 64).half()}, "weight"),
        ({"bias": random(31)}, "bias"),
    ],
)
def test_what_it_cannot_take_is_refused(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        fixed_linear(**{"x": random(2, 64), "weight": random(32, 64)} | change)
