"""Products of two numbers of 8 bits against their definition, in the interpreter and by torch's product on a CPU."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.linear.scaled_linear import round_rows, scaled_linear, scaled_weight  # noqa: E402
from actorserve.kernels.triton.linear.stored_weights import decoded, stored_weight  # noqa: E402
from actorserve.kernels.triton.quantised_kv import supported  # noqa: E402
from tests.support.gpu.scaled_products import needs_them  # noqa: E402

E4M3 = torch.float8_e4m3fn


def rows_of(rows: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    """Of very different sizes, one of them 0."""
    x = (
        torch.randn(rows, inputs + 3, generator=torch.Generator().manual_seed(rows))
        * torch.logspace(-3, 3, rows)[:, None]
    )
    x[0] = 0
    return x.to(DEVICE, dtype)[:, :inputs]


def rounded(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """By definition, (numbers, scales) in float64: by trying powers of 2."""
    peak = x.double().abs().amax(1, keepdim=True)
    scales = torch.full_like(peak, 2.0**-126)
    for power in range(-125, 128):
        scales = torch.where(peak / scales > 448, torch.full_like(peak, 2.0**power), scales)
    return (x.double() / scales).float().to(E4M3).double(), scales


@pytest.mark.parametrize(("inputs", "width"), [(200, 256), (128, 128), (5000, 5120)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_are_rounded(inputs: int, width: int, dtype: torch.dtype) -> None:
    x = rows_of(9, inputs, dtype)
    numbers, scales = round_rows(x, width)
    wanted, powers = rounded(x)
    assert torch.equal(scales.double(), powers) and torch.equal(numbers[:, :inputs].double(), wanted)
    assert not numbers[:, inputs:].view(torch.uint8).any()
    apart = (numbers[1:, :inputs].double() * powers[1:] - x[1:].double()).norm() / x[1:].double().norm()
    assert 0 < apart < 0.04


@needs_them
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.skipif(not supported(torch.device(DEVICE)), reason="this GPU has no such product")
def test_products(biased: bool) -> None:
    random = torch.Generator().manual_seed(3)
    bits = torch.randint(0, 120, (48, 200), generator=random) | torch.randint(0, 2, (48, 200), generator=random) << 7
    weight = stored_weight("e4m3", bits, torch.rand(48, 1, generator=random) / 448, 200).to(DEVICE)
    own = scaled_weight(weight)
    assert own is not None and own.numbers.data_ptr() == weight.numbers.data_ptr(), "no memory of its own"
    x = rows_of(70, 200, torch.bfloat16)
    bias = torch.randn(48, generator=random).to(DEVICE, torch.bfloat16) if biased else None
    numbers, scales = rounded(x)
    wanted = (numbers * scales) @ decoded(weight).double().T + (0 if bias is None else bias.double())
    found = scaled_linear(x, own, bias)
    assert found.dtype == torch.bfloat16
    rows = slice(0 if biased else 1, None)  # the first is 0
    assert ((found.double() - wanted).norm(dim=1) / wanted.norm(dim=1))[rows].max() < 5e-3 and found.isfinite().all()


def test_what_it_cannot_take() -> None:
    numbers, scales = torch.zeros(48, 256), torch.ones(48, 1)
    assert scaled_weight(stored_weight("bits8", numbers, scales, 256)) is None
    assert scaled_weight(stored_weight("e4m3", numbers, torch.ones(48, 2), 128)) is None
    assert scaled_weight(stored_weight("e4m3", numbers[:47], scales[:47], 256)) is None
    own = scaled_weight(stored_weight("e4m3", numbers, scales, 256).to(DEVICE))
    assert own is not None
    with pytest.raises(ValueError, match="float32"):
        scaled_linear(torch.zeros(2, 256, device=DEVICE), own)
    with pytest.raises(ValueError, match="at most 128"):
        round_rows(torch.zeros(2, 200, device=DEVICE), 128)
