"""The memory of sampling.py's kernels: how a row is worked through, and what they leave each other.

Knows tensors only.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
from torch import Tensor

MOST_LANES = 8192  # of all slices, that a program can look over at once


class Tiling(NamedTuple):
    """How a row is worked through; powers of 2."""

    width: int = 4096  # words of a slice
    lanes: int = 128  # of a slice
    segment: int = 1024  # candidates of a slice for which there is room
    candidates: int = 2048  # of a row
    slice_warps: int = 8
    gather_warps: int = 16  # it has a few numbers of 64 bits for each word
    row_warps: int = 8

    def of(self, words: int) -> Tiling:
        """For so many words: slices have fewer lanes where there would be more than a program can look over."""
        slices = triton.next_power_of_2(max(1, triton.cdiv(words, self.width)))
        return self._replace(lanes=min(self.lanes, MOST_LANES // slices))


DEFAULT = Tiling()


class Workspace(NamedTuple):
    """What the kernels leave each other, for batches of up to so many rows."""

    peaks: Tensor  # float32 [rows, slices, lanes]: the largest logit of each lane
    bests: Tensor  # float32 [rows, slices]
    firsts: Tensor  # int32 [rows, slices]: the first word that has it
    numbers: Tensor  # int32 [rows, slices]: of a row with top-nσ, how many logits are finite,
    sums: Tensor  # float64 [rows, slices]: their sum,
    squares: Tensor  # float64 [rows, slices]: and that of their squares
    totals: Tensor  # int64 [rows, slices]: the weight of its words
    counts: Tensor  # int32 [rows, slices]: how many of them weigh anything, and as much as min-p asks
    found: Tensor  # int32 [rows, slices]: candidates
    masses: Tensor  # int64 [rows, slices]: their weight
    moments: Tensor  # float64 [rows, slices]: of a row with typical-p alone, the sum of w · log w
    leasts: Tensor  # float32 [rows]: the smallest logit that top-nσ keeps
    edges: Tensor  # int32 [rows]: the bits of the weight from which on words are candidates
    slice_logits: Tensor  # float32 [rows, slices, segment]: those of candidates, taken as of the logits' type
    slice_words: Tensor  # int32 [rows, slices, segment]
    logits: Tensor  # float32 [rows, candidates]: all of a row, one after the other
    words: Tensor  # int32 [rows, candidates]

    @classmethod
    def make(cls, rows: int, words: int, device: torch.device | str, tiling: Tiling = DEFAULT) -> Workspace:
        """Made once, before graphs are captured."""
        tiling = tiling.of(words)
        slices = triton.cdiv(words, tiling.width)

        def empty(dtype: torch.dtype, *shape: int) -> Tensor:
            return torch.empty(rows, *shape, dtype=dtype, device=device)

        return cls(
            peaks=empty(torch.float32, slices, tiling.lanes),
            bests=empty(torch.float32, slices),
            firsts=empty(torch.int32, slices),
            numbers=empty(torch.int32, slices),
            sums=empty(torch.float64, slices),
            squares=empty(torch.float64, slices),
            totals=empty(torch.int64, slices),
            counts=empty(torch.int32, slices),
            found=empty(torch.int32, slices),
            masses=empty(torch.int64, slices),
            moments=empty(torch.float64, slices),
            leasts=empty(torch.float32),
            edges=empty(torch.int32),
            slice_logits=empty(torch.float32, slices, tiling.segment),
            slice_words=empty(torch.int32, slices, tiling.segment),
            logits=empty(torch.float32, tiling.candidates),
            words=empty(torch.int32, tiling.candidates),
        )


def check_workspace(workspace: Workspace, rows: int, slices: int, tiling: Tiling) -> None:
    widths = {"peaks": tiling.lanes, "slice_logits": tiling.segment, "slice_words": tiling.segment}
    shapes: dict[str, tuple[int, ...]] = {name: (slices, width) for name, width in widths.items()}
    shapes |= {"leasts": (), "edges": (), "logits": (tiling.candidates,), "words": (tiling.candidates,)}
    for name, memory in workspace._asdict().items():
        fits = memory.shape[1:] == shapes.get(name, (slices,)) and memory.shape[0] >= rows
        if not fits or not memory.is_contiguous():
            raise ValueError(f"workspace {name} {list(memory.shape)} does not fit {rows} rows of {slices} slices")
