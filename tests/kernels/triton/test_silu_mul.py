"""The gate kernel against the formula in float64, in the interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.silu_mul import BLOCK, gelu_tanh_mul, silu_mul  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 2e-6, torch.float16: 1e-3, torch.bfloat16: 8e-3}  # of a number's size: one step of the type


def random(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return (torch.randn(*shape, generator=torch.Generator().manual_seed(0)) * 3).to(DEVICE, dtype)


def exact(merged: torch.Tensor) -> torch.Tensor:
    gate, up = merged.double().chunk(2, -1)
    return gate / (1 + (-gate).exp()) * up


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 4)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 37, BLOCK, 2 * BLOCK + 5])
def test_gate(dtype: torch.dtype, size: int) -> None:
    merged = random(3, 2 * size, dtype=dtype)
    before = merged.clone()
    found = silu_mul(merged)
    assert found.shape == (3, size) and found.dtype == dtype
    close(found, exact(merged), dtype)
    assert torch.equal(merged, before)


@pytest.mark.parametrize("dtype", DTYPES)
def test_gates_by_gelu(dtype: torch.dtype) -> None:
    merged = 3 * random(3, 2 * 37, dtype=dtype)
    gate, up = merged.double().chunk(2, -1)
    close(gelu_tanh_mul(merged), torch.nn.functional.gelu(gate, approximate="tanh") * up, dtype)


def test_large_gates() -> None:
    """exp of them is infinite or nothing; the gate is shut, or leaves `up` as it is."""
    merged = torch.tensor([[-200.0, 200.0, -90.0, 30.0, 2.0, 3.0, -5.0, -7.0]], device=DEVICE)
    close(silu_mul(merged), torch.tensor([[0.0, 600.0, 0.0, -210.0]], device=DEVICE).double(), torch.float32)


def test_rows_apart() -> None:
    wide, target = random(4, 100), torch.full((4, 70), float("nan"), device=DEVICE)
    wide[:, 60:] = float("nan")
    out = target[:, :30]
    assert silu_mul(wide[:, :60], out=out) is out
    close(out, exact(wide[:, :60]), torch.float32)
    assert target[:, 30:].isnan().all()


def test_no_tokens() -> None:
    assert silu_mul(random(0, 8)).shape == (0, 4)
    assert silu_mul(random(3, 0)).shape == (3, 0)


def test_misfits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, 7\]"):
        silu_mul(random(2, 7))
    with pytest.raises(ValueError, match="float64"):
        silu_mul(random(2, 8).double())
    for out in (random(2, 5), random(3, 4), random(2, 4, dtype=torch.float16)):
        with pytest.raises(ValueError, match="out"):
            silu_mul(random(2, 8), out=out)
    with pytest.raises(ValueError, match="side by side"):
        silu_mul(random(8, 2).t())
