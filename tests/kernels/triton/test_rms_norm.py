"""The norm kernels against the formula in float64, in the interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.rms_norm import add_rms_norm, rms_norm  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # of a number's size: one step of the type
EPS = 1e-5


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def exact(values: torch.Tensor, gain: torch.Tensor, eps: float = EPS) -> torch.Tensor:
    values = values.double()
    return values / (values.square().mean(-1, keepdim=True) + eps).sqrt() * gain.double()


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 7, 64, 100, 1536])
def test_norm(dtype: torch.dtype, size: int) -> None:
    x, gain = random(3, size, dtype=dtype) * 3, random(size, dtype=dtype, seed=1)
    found = rms_norm(x, gain, EPS)
    assert found.dtype == dtype and found.shape == x.shape
    close(found, exact(x, gain), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 80, 1000])
def test_addition_and_norm(dtype: torch.dtype, size: int) -> None:
    x, residual = random(4, size, dtype=dtype), random(4, size, dtype=dtype, seed=2) * 2
    gain = random(size, dtype=torch.float32, seed=1)
    total = x.double() + residual.double()
    before = x.clone()
    found = add_rms_norm(x, residual, gain, EPS)
    close(residual, total, dtype)
    close(found, exact(residual, gain), dtype)
    assert torch.equal(x, before)


def test_eps_is_added_to_the_mean_of_squares() -> None:
    x, gain = random(2, 33) * 1e-3, random(33, seed=1)
    close(rms_norm(x, gain, 1e-2), exact(x, gain, 1e-2), torch.float32)


def test_sums_are_float32() -> None:
    """Squares of these are too large for float16, and their sum for its precision."""
    x, gain = random(2, 2048, dtype=torch.float16) * 1000, random(2048, seed=1)
    close(rms_norm(x, gain, EPS), exact(x, gain), torch.float16)


def test_rows_apart_and_results_in_place() -> None:
    """Parts of wider matrices; nothing beside them is read or written."""
    wide, rest = random(5, 300), random(5, 200, seed=3)
    wide[:, 100:] = rest[:, 100:] = float("nan")
    x, residual, gain = wide[:, :100], rest[:, :100], random(100, seed=1)
    total = (x + residual).double()
    found = add_rms_norm(x, residual, gain, EPS, out=x)
    assert found.data_ptr() == wide.data_ptr()
    close(x, exact(total, gain), torch.float32)
    close(residual, total, torch.float32)
    assert wide[:, 100:].isnan().all() and rest[:, 100:].isnan().all()


def test_all_rows_apart_by_different_lengths() -> None:
    x, residual, out = random(4, 50)[:, :30], random(4, 40, seed=2)[:, :30], random(4, 70)[:, :30]
    total, gain = (x + residual).double(), random(30, seed=1)
    assert add_rms_norm(x, residual, gain, EPS, out=out) is out
    close(out, exact(total, gain), torch.float32)
    close(residual, total, torch.float32)


def test_no_tokens() -> None:
    assert rms_norm(random(0, 8), random(8), EPS).shape == (0, 8)
    assert add_rms_norm(random(0, 8), random(0, 8), random(8), EPS).shape == (0, 8)


def test_misfits_are_refused() -> None:
    x, gain = random(2, 8), random(8)
    with pytest.raises(ValueError, match=r"gain .*\[7\]"):
        rms_norm(x, random(7), EPS)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm(x, random(3, 8), gain, EPS)
    with pytest.raises(ValueError, match="residual"):
        add_rms_norm(x, x.half(), gain, EPS)
    with pytest.raises(ValueError, match="out"):
        rms_norm(x, gain, EPS, out=random(2, 9))
    with pytest.raises(ValueError, match="side by side"):
        rms_norm(random(8, 2).t(), gain, EPS)
    with pytest.raises(ValueError, match="does not fit"):
        rms_norm(x.double(), gain, EPS)
    with pytest.raises(ValueError, match="tokens, size"):
        rms_norm(random(2, 3, 8), gain, EPS)
