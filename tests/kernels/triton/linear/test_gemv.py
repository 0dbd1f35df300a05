"""Products of few rows against float64, in the interpreter where there is no GPU."""

from __future__ import annotations

import math
import os
from typing import Any

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.linear.gemv import (  # noqa: E402
    MOST_ROWS,
    MOST_SPLITS,
    GemvLaunch,
    NormBefore,
    Workspace,
    gemv,
    programmatic_launch,
)

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
TOLERANCE = {torch.float32: 1e-5, torch.float16: 2e-3, torch.bfloat16: 1.6e-2}  # of numbers around 1
NAN = float("nan")
SMALL = GemvLaunch(tile_n=16, tile_k=32)


def random(*shape: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(DEVICE, dtype)


def product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, **asked: Any) -> torch.Tensor:
    """In float64. Rounded where the kernel rounds: x times the gain."""
    exact = x.double()
    if (norm := asked.get("norm")) is not None:
        scale: torch.Tensor = (exact.square().mean(1, keepdim=True) + norm.eps).rsqrt()
        exact = (x.float() * norm.gain.float()).to(x.dtype).double() * scale
    y = exact @ weight.double().T
    if bias is not None:
        y += bias.double()
    if asked.get("gated"):
        gate, up = y.chunk(2, 1)
        y = gate * gate.sigmoid() * up
    result: torch.Tensor = y if asked.get("add") is None else y + asked["add"].double()
    return result


def weights(outputs: int, inputs: int, dtype: torch.dtype) -> torch.Tensor:
    return (random(outputs, inputs, seed=1) / math.sqrt(inputs)).to(dtype)


def close(found: torch.Tensor, wanted: torch.Tensor, dtype: torch.dtype) -> None:
    assert found.dtype == dtype
    torch.testing.assert_close(found.double(), wanted, rtol=TOLERANCE[dtype], atol=TOLERANCE[dtype] / 2)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("rows", "outputs", "inputs"), [(1, 48, 64), (3, 70, 100), (8, 16, 32), (2, 5, 7)])
def test_a_product(dtype: torch.dtype, rows: int, outputs: int, inputs: int) -> None:
    x, weight = random(rows, inputs, dtype=dtype), weights(outputs, inputs, dtype)
    close(gemv(x, weight, launch=SMALL), product(x, weight), dtype)
    bias = random(outputs, dtype=dtype, seed=2)
    close(gemv(x, weight, bias, launch=SMALL), product(x, weight, bias), dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_the_norm_before_it_and_the_gate_behind(dtype: torch.dtype, gated: bool, biased: bool) -> None:
    """Residuals are large, and so is eps here, so that neither can be left out."""
    x, weight = random(3, 90, dtype=dtype) * 30, weights(70, 90, dtype)
    norm = NormBefore(1 + random(90, dtype=dtype, seed=3) / 4, 100.0)
    bias = random(70, dtype=dtype, seed=2) if biased else None
    asked: dict[str, Any] = {"norm": norm, "gated": gated}
    close(gemv(x, weight, bias, launch=SMALL, **asked), product(x, weight, bias, **asked), dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("splits", [1, 2, 5, MOST_SPLITS])
def test_splits_are_added_up_and_to_the_residual(dtype: torch.dtype, splits: int) -> None:
    """Some have no numbers at all; the workspace is as it was, but for what nobody reads."""
    x, weight, residual = random(4, 200, dtype=dtype), weights(40, 200, dtype), random(4, 40, dtype=dtype, seed=4)
    workspace = Workspace.make(40, DEVICE)
    workspace.partial.fill_(NAN)
    wanted = product(x, weight, add=residual)
    for _ in range(2):
        found = residual.clone()
        assert gemv(x, weight, add=found, workspace=workspace, splits=splits, launch=SMALL) is found
        close(found, wanted, dtype)
        assert not workspace.tickets.any(), "the next product begins with none"
    assert workspace.partial.isnan().all() == (splits == 1)


@pytest.mark.parametrize("asked", [{}, {"norm": True}, {"gated": True}, {"splits": 3}])
def test_a_row_has_the_same_bits_beside_others(asked: dict[str, Any]) -> None:
    x, weight = random(MOST_ROWS, 150), weights(32, 150, torch.float32)
    own = {"workspace": Workspace.make(32, DEVICE), "launch": SMALL} | asked
    if "norm" in asked:
        own["norm"] = NormBefore(random(150, seed=3), 1e-5)
    together = gemv(x, weight, **own)
    for row in range(MOST_ROWS):
        assert torch.equal(gemv(x[row : row + 1], weight, **own)[0], together[row])


def test_rows_apart_and_what_lies_between() -> None:
    wide, target = random(4, 100), torch.full((4, 70), NAN, device=DEVICE)
    wide[:, 60:] = NAN
    out = target[:, :30]
    out.fill_(2.0)
    weight = weights(30, 100, torch.float32)[:, :60]
    gemv(wide[:, :60], weight, add=out, launch=SMALL)
    close(out, product(wide[:, :60], weight) + 2, torch.float32)
    assert target[:, 30:].isnan().all()


def test_splits_fill_the_device() -> None:
    launch = GemvLaunch()
    assert launch.splits(1024, 2048, 132) == 4, "32 programs are too few"
    assert launch.splits(1024, 14336, 132) == 8 and launch.splits(4096, 14336, 132) == 2
    assert launch.splits(28672, 4096, 132) == launch.splits(64, 300, 132) == 1


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"x": random(9, 64)}, "1 to 8"),
        ({"x": random(0, 64)}, "1 to 8"),
        ({"x": random(1, 60)}, "does not fit x"),
        ({"weight": random(32, 64).half()}, "does not fit x"),
        ({"bias": random(31)}, "bias"),
        ({"add": random(1, 31)}, "add"),
        ({"splits": 2}, "workspace"),
        ({"splits": 9, "workspace": Workspace.make(32, DEVICE)}, "up to 8"),
        ({"splits": 2, "workspace": Workspace.make(32, DEVICE), "gated": True}, "without norm and gate"),
        ({"splits": 8, "workspace": Workspace(random(32), random(9).int())}, "workspace of 32"),
        ({"norm": NormBefore(random(63), 1e-5)}, "gain"),
        ({"x": random(1, 64).half(), "weight": random(32, 64).half(), "norm": NormBefore(random(64), 1.0)}, "float16"),
    ],
)
def test_what_it_cannot_take_is_refused(change: dict[str, Any], said: str) -> None:
    call = {"x": random(1, 64), "weight": random(32, 64)} | change
    with pytest.raises(ValueError, match=said):
        gemv(**call)


def test_nothing_overlaps_where_there_is_no_hopper() -> None:
    assert programmatic_launch(torch.device("cpu")) is False
