"""Triton: rows of numbers that are given to some tokens of a step, as the embeddings of pictures are.

    x[t] = rows[places[t]]          put_rows: in the place of what the token has
    x[t] += rows[places[t]]         add_rows: in float32, rounded once
for each token t whose place is not below 0; programs of the others leave at once. The grid follows from shapes alone,
so that a graph that captured it serves steps with any number of such tokens, and with none.
Compiled ahead of time and checked in the interpreter; not run on a GPU yet. Knows tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ...checked import once_for_each_form

DTYPES = (torch.float32, torch.float16, torch.bfloat16)
PIECE = 1024  # numbers of a row at a time


class GivenRows(NamedTuple):
    """Of a step."""

    places: Tensor  # int64 [tokens]: which of the rows a token has; below 0: none
    embeddings: Tensor  # [rows, size]
    behind: Tensor  # [layers, rows, size]: what is added behind each of the first layers


@triton.jit(do_not_specialize_on_alignment=["places"])  # they may be a part of a vector
def given_rows_kernel(x, rows, places, x_row, rows_row, size, ADD: tl.constexpr, PIECE: tl.constexpr):
    """One token."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    if place >= 0:
        for begin in range(0, size, PIECE):
            at = begin + tl.arange(0, PIECE)
            inside = at < size
            values = tl.load(rows + place * rows_row + at, mask=inside)
            target = x + token * x_row + at
            if ADD:
                values = values.to(tl.float32) + tl.load(target, mask=inside).to(tl.float32)
            tl.store(target, values.to(x.dtype.element_ty), mask=inside)


def put_rows(x: Tensor, rows: Tensor, places: Tensor) -> None:
    """Each token's row of `rows` in the place of its own, where it has one.

    x       [tokens, size], float32, float16 or bfloat16; the numbers of a row side by side
    rows    [any number, size], of the same type
    places  int64 [tokens], below the number of rows
    """
    _launch(x, rows, places, add=False)


def add_rows(x: Tensor, rows: Tensor, places: Tensor) -> None:
    """The same, added to what the token has."""
    _launch(x, rows, places, add=True)


def _launch(x: Tensor, rows: Tensor, places: Tensor, add: bool) -> None:
    _check(x, rows, places)
    if len(x):
        strides = x.stride(0), rows.stride(0)
        given_rows_kernel[(len(x),)](x, rows, places, *strides, x.shape[1], ADD=add, PIECE=PIECE, num_warps=4)


@once_for_each_form
def _check(x: Tensor, rows: Tensor, places: Tensor) -> None:
    for name, tensor in (("x", x), ("rows", rows)):
        fits = tensor.dim() == 2 and tensor.shape[1:] == x.shape[1:] and tensor.stride(1) == 1
        if not fits or tensor.dtype != x.dtype or x.dtype not in DTYPES or tensor.device != x.device:
            raise ValueError(f"{name} {tensor.dtype}{list(tensor.shape)} must be floats [rows, size], as x are")
    fits = places.shape == x.shape[:1] and places.dtype == torch.int64 and places.is_contiguous()
    if not fits or places.device != x.device:
        raise ValueError(f"places {places.dtype}{list(places.shape)} must be int64 [{len(x)}]")
