"""Decoding attention in float32 with numpy's products: one query a sequence, the heads of a group as rows of a product.

Such a product is two or eight rows wide, and OpenBLAS, which numpy's wheels bring along, has kernels for that; torch's
library packs the keys first. Measured (one thread of a Zen 4, µs for one row of decoding in one layer, both products):
                        torch   numpy
    16 + 8 heads of 128, 128 tokens, from memory     198     109
    8 + 4 heads of 32, 160 tokens, cached             29      18

Sequences of similar length share one softmax: their scores stand in rows of one width, -inf behind each one's end.
Widths are multiples of a vector register, so that the zeros that -inf becomes change no sum: a sequence's result is the
same beside any others.

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

WIDTH = 64  # numbers that widths are multiples of: at least those of a vector register
TOGETHER = 1 << 16  # scores that share a softmax: they stay in the cache
PIECE = 1 << 14  # numbers of a head's keys that are multiplied at once
MOST_THREADS = 2  # with more, torch's products are done sooner, since they are shared out
LIBRARIES = "libscipy_openblas*.so*"  # in numpy's wheel

Floats = np.ndarray[tuple[int, ...], np.dtype[np.float32]]


class Row(NamedTuple):
    """A sequence that decodes: its row of the flat batch, how many tokens it sees, and where they are."""

    row: int
    size: int
    slot: int  # the first one's, if they are in one run
    blocks: Tensor | None  # otherwise the blocks that hold them, and
    offset: int  # the first one's place in these


@cache
def prepare_numpy() -> bool:
    """Whether numpy multiplies by an OpenBLAS of its own, which from now on takes one thread."""
    for file in (Path(np.__file__).parent.parent / "numpy.libs").glob(LIBRARIES):
        library = ctypes.CDLL(str(file))
        for name in ("scipy_openblas_set_num_threads64_", "scipy_openblas_set_num_threads"):
            if hasattr(library, name):
                getattr(library, name)(1)
                return True
    return False


def pays(pool: Tensor) -> bool:
    """Whether decoding over this KV memory is done here."""
    return pool.dtype == torch.float32 and torch.get_num_threads() <= MOST_THREADS and prepare_numpy()


class NumpyKV:
    """The same KV memory as numpy's arrays, with room for scores and for blocks that are gathered."""

    def __init__(self, pool: Tensor, block_size: int) -> None:
        layers, _, self.heads, slots, self.head_dim = pool.shape
        self.block_size = block_size
        arrays = pool.numpy()
        self.keys, self.values = list(arrays[:, 0]), list(arrays[:, 1])  # [heads, slots, head_dim] in each layer
        blocks = pool.view(layers, 2, self.heads, slots // block_size, block_size * self.head_dim)
        self.key_blocks, self.value_blocks = blocks[:, 0].unbind(0), blocks[:, 1].unbind(0)
        self._rooms: dict[int | None, Tensor] = {}

    def room(self, window: int | None, size: int) -> Tensor:
        """So many numbers, for each window the same memory in every step."""
        room = self._rooms.get(window)
        if room is None or len(room) < size:
            room = self._rooms[window] = torch.empty(size if room is None else max(size, 2 * len(room)))
        return room[:size]


class _Group:
    """Rows that share a softmax."""

    def __init__(self, rows: Sequence[Row], width: int, heads: tuple[int, int], memory: tuple[Tensor, Tensor]) -> None:
        shape = (len(rows), *heads, width)
        size = len(rows) * heads[0] * heads[1] * width
        self.scores, self.shares = (part[:size].view(shape) for part in memory)
        self._whole = [*zip(rows, self.scores.numpy(), self.shares.numpy(), strict=True)]
        self.longest, self.width = rows[0].size, width
        self.place(0)

    def place(self, more: int) -> None:
        """Each row sees so many tokens more than at first: (row, its size, its scores, its shares) of them."""
        self.rows = [
            (row, size := row.size + more, scores[:, :, :size], shares[:, :, :size])
            for row, scores, shares in self._whole
        ]


class Decoding:
    """The rows of one step that decode, as one window lets them see."""

    def __init__(self, kv: NumpyKV, rows: Sequence[Row], window: int | None, group: int, scale: float) -> None:
        """`group` query heads share each head of keys."""
        self.kv = kv
        self.scale = scale
        self._more = 0  # tokens that each row sees beyond those it was made for
        self._room = math.inf if window is None else window - max(row.size for row in rows)  # it may come to so many
        for row in rows:
            if row.blocks is not None:
                self._room = min(self._room, len(row.blocks) * kv.block_size - row.offset - row.size)
        self.shape = (-1, kv.heads, group, kv.head_dim)
        parts = _divide(rows, TOGETHER // (kv.heads * group))
        sizes = [len(part) * width * kv.heads * group for part, width in parts]
        most, total = max(sizes), sum(sizes)
        gathered = max((len(row.blocks) for row in rows if row.blocks is not None), default=0)
        block = kv.heads * kv.block_size * kv.head_dim
        room = kv.room(window, total + most + gathered * block)
        scores, shares, self._gather = (
            room[:total].fill_(float("-inf")),
            room[total : total + most],
            room[total + most :],
        )
        self.groups, first = [], 0
        for (part, width), size in zip(parts, sizes, strict=True):
            self.groups.append(_Group(part, width, (kv.heads, group), (scores[first : first + size], shares)))
            first += size
        self._room = min(self._room, *(group.width - group.longest for group in self.groups))

    def advance(self) -> bool:
        """Each row sees one token more. False: there is no room for it, and this object is of no use any more."""
        if self._more == self._room:
            return False
        self._more += 1
        for group in self.groups:
            group.place(self._more)
        return True

    def attend(self, layer: int, queries: Tensor, out: Tensor) -> None:
        """`queries` [tokens, heads, head_dim]; `out` is contiguous."""
        kv, scaled = self.kv, (queries * self.scale).view(self.shape).numpy()
        results = out.view(self.shape).numpy()
        keys, values = kv.keys[layer], kv.values[layer]
        for group in self.groups:
            for row, size, scores, _ in group.rows:
                _multiply(scaled[row.row], self._seen(row, size, keys, kv.key_blocks[layer]), scores)
            torch.softmax(group.scores, -1, out=group.shares)
            for row, size, _, shares in group.rows:
                np.matmul(shares, self._seen(row, size, values, kv.value_blocks[layer]), out=results[row.row])

    def _seen(self, row: Row, size: int, memory: Floats, blocks: Tensor) -> Floats:
        """What a row sees of a layer's keys or values, [heads, tokens, head_dim], good until the next call."""
        if row.blocks is None:
            return memory[:, row.slot : row.slot + size]
        count, heads, head_dim = len(row.blocks), self.kv.heads, self.kv.head_dim
        target = self._gather[: count * blocks[:, 0].numel()].view(heads, count, -1)
        torch.index_select(blocks, 1, row.blocks, out=target)
        return target.numpy().reshape(heads, -1, head_dim)[:, row.offset : row.offset + size]


def _multiply(queries: Floats, keys: Floats, out: Floats) -> None:
    """out [heads, group, tokens] = queries [heads, group, head_dim] · keys [heads, tokens, head_dim]ᵀ.

    In pieces: of a larger matrix OpenBLAS packs all before it multiplies, for which it takes up to four times as long.
    """
    heads, size, head_dim = keys.shape
    piece = max(WIDTH, PIECE // head_dim)
    whole = size - size % piece if size > piece else 0
    if whole:  # both reshaped are views
        pieces = keys[:, :whole].reshape(heads, -1, piece, head_dim).transpose(0, 1, 3, 2)
        parts = out[:, :, :whole].reshape(heads, out.shape[1], -1, piece).transpose(0, 2, 1, 3)
        np.matmul(queries[:, None], pieces, out=parts)
    if whole < size:
        np.matmul(queries, keys[:, whole:].transpose(0, 2, 1), out=out[:, :, whole:])


def _divide(rows: Sequence[Row], together: int) -> list[tuple[list[Row], int]]:
    """Rows that share a softmax, and its width: none is shorter than half of it, or all are as short as can be."""
    parts: list[tuple[list[Row], int]] = []
    for row in sorted(rows, key=lambda row: -row.size):
        own = -(-row.size // WIDTH) * WIDTH
        if not parts or 2 * own < parts[-1][1] or (len(parts[-1][0]) + 1) * parts[-1][1] > together:
            parts.append(([], own))
        parts[-1][0].append(row)
    return parts
