"""Rows that are given to some tokens, against torch's indices; in the interpreter where there is no GPU."""

from __future__ import annotations

import os

import pytest
import torch

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
if DEVICE == "cpu":
    os.environ.setdefault("TRITON_INTERPRET", "1")  # before kernels are imported

from actorserve.kernels.triton.vision.given_rows import PIECE, add_rows, put_rows  # noqa: E402

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
PLACES = [-1, 2, -1, 0, 4, -1, 2]
TOKENS = [index for index, place in enumerate(PLACES) if place >= 0]


def random(*shape: int, dtype: torch.dtype) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(len(shape) + shape[0])).to(DEVICE, dtype)


def places(*wanted: int) -> torch.Tensor:
    """A part of a vector, as the runner has it."""
    return torch.tensor([7, *wanted], device=DEVICE)[1:]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [1, 64, PIECE, 2 * PIECE + 5])
def test_rows(dtype: torch.dtype, size: int) -> None:
    before, rows = random(len(PLACES), size, dtype=dtype), random(5, size, dtype=dtype)
    own = rows[[place for place in PLACES if place >= 0]]
    for run, wanted in ((put_rows, own), (add_rows, (before[TOKENS].float() + own.float()).to(dtype))):
        x = before.clone()
        run(x, rows, places(*PLACES))
        expected = before.clone()
        expected[TOKENS] = wanted
        step = 2**-7 if run is add_rows and dtype == torch.bfloat16 else 0.0  # the interpreter cuts it off
        torch.testing.assert_close(x, expected, rtol=step, atol=0)


def test_tokens_of_nobody_stay_as_they_are() -> None:
    x, rows = random(3, 8, dtype=torch.float32), torch.full((2, 8), float("nan"), device=DEVICE)
    before = x.clone()
    put_rows(x, rows, places(-1, -1, -1))
    add_rows(x, rows, places(-1, -1, -1))
    put_rows(x[:0], rows, places())
    assert torch.equal(x, before)


def test_rows_apart() -> None:
    wide, rows = random(3, 20, dtype=torch.float32), random(4, 30, dtype=torch.float32)
    before = wide.clone()
    put_rows(wide[:, :8], rows[:, :8], places(3, -1, 1))
    assert torch.equal(wide[:, 8:], before[:, 8:]) and torch.equal(wide[1], before[1])
    assert torch.equal(wide[[0, 2], :8], rows[[3, 1], :8])


@pytest.mark.parametrize(
    ("rows", "where", "said"),
    [
        (torch.zeros(2, 9), torch.zeros(3, dtype=torch.int64), "rows torch.float32"),
        (torch.zeros(2, 8).half(), torch.zeros(3, dtype=torch.int64), "rows torch.float16"),
        (torch.zeros(2, 8), torch.zeros(2, dtype=torch.int64), "places torch.int64"),
        (torch.zeros(2, 8), torch.zeros(3, dtype=torch.int32), "places torch.int32"),
    ],
)
def test_what_does_not_fit(rows: torch.Tensor, where: torch.Tensor, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        put_rows(torch.zeros(3, 8, device=DEVICE), rows.to(DEVICE), where.to(DEVICE))
