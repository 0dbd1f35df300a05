"""Decoding attention in float32 with numpy's products: one query a sequence, the heads of a group as rows of a product.

Such a product is two or eight rows wide, and OpenBLAS, which numpy's wheels bring along, has kernels for that; torch's
library packs the keys first. Measured (one thread of a Zen 4, µs for one row of decoding in one layer, both products):
                        torch   numpy
    16 + 8 heads of 128, 128 tokens, from memory     198     109
    8 + 4 heads of 32, 160 tokens, cached             29      18

Sequences of similar length share one softmax: their scores stand in rows of one width, -inf behind each one's end.
Widths are multiples of a vector register, so that the zeros that -inf becomes change no sum: a sequence's result is the
same beside any others. A head's sink is a score more, in the last column.

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

from actorserve.actors.model.memory.kv import LayerAttention

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
    blocks: Tensor | None = None  # otherwise the blocks that hold them, and
    offset: int = 0  # the first one's place in these
    room: float = math.inf  # so many tokens it may come to see beside these


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


def pays(keys: Tensor) -> bool:
    """Whether decoding over these keys is done here."""
    return keys.dtype == torch.float32 and torch.get_num_threads() <= MOST_THREADS and prepare_numpy()


def gather_blocks(blocks: Tensor, index: Tensor, out: Tensor) -> None:
    """Those of `index`, of blocks [heads, blocks, numbers]. Of what does not lie side by side torch would copy all
    first, so that packed heads are read one by one.
    """
    if blocks.is_contiguous():
        torch.index_select(blocks, 1, index, out=out)
        return
    for own, target in zip(blocks, out, strict=True):
        torch.index_select(own, 0, index, out=target)


class NumpyKV:
    """The same KV memory as numpy's arrays, with room for scores and for blocks that are gathered."""

    def __init__(self, keys: Tensor, values: Tensor, block_size: int, values_in_keys: bool = False) -> None:
        """`keys` [layers, kv_heads, slots, key_dim], `values` [layers, kv_heads, slots, value_dim], which may be a part
        of the keys.
        """
        self.heads, self.key_dim, self.value_dim = keys.shape[1], keys.shape[3], values.shape[3]
        self.block_size = block_size
        self.keys, self.values = list(keys.numpy()), list(values.numpy())  # [heads, slots, width] in each layer
        self.key_blocks, self.value_blocks = (
            part.unflatten(2, (-1, block_size)).flatten(3).unbind(0)
            for part in (keys, keys if values_in_keys else values)
        )
        self._rooms: dict[LayerAttention, Tensor] = {}

    def room(self, rule: LayerAttention, size: int) -> Tensor:
        """So many numbers, for each rule the same memory in every step."""
        room = self._rooms.get(rule)
        if room is None or len(room) < size:
            room = self._rooms[rule] = torch.empty(size if room is None else max(size, 2 * len(room)))
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

    def biases(self, slopes: Tensor | None) -> Tensor:
        """What to add to scores: -inf behind each row's end, and `slopes` [heads, group, 1] times the distance."""
        sizes = torch.tensor([size for _, size, _, _ in self.rows])[:, None, None, None]
        distance = torch.arange(self.width) - (sizes - 1)
        near = torch.zeros(1) if slopes is None else slopes * distance
        return torch.where(distance > 0, float("-inf"), near)


class Decoding:
    """The rows of one step that decode, as layers of one kind let them see."""

    def __init__(self, kv: NumpyKV, rows: Sequence[Row], rule: LayerAttention) -> None:
        self.kv = kv
        self.rule = rule
        self._more = 0  # tokens that each row sees beyond those it was made for
        self._room = min(row.room for row in rows)  # it may come to so many
        for row in rows:
            if row.blocks is not None:
                self._room = min(self._room, len(row.blocks) * kv.block_size - row.offset - row.size)
        heads = (kv.heads, rule.heads // kv.heads)
        parts = _divide(rows, TOGETHER // rule.heads, int(rule.sinks))
        sizes = [len(part) * width * rule.heads for part, width in parts]
        most, total = max(sizes), sum(sizes)
        gathered = max((len(row.blocks) for row in rows if row.blocks is not None), default=0)
        block = kv.heads * kv.block_size * max(kv.key_dim, kv.value_dim)
        room = kv.room(rule, total + most + gathered * block)
        scores, shares, self._gather = (
            room[:total].fill_(float("-inf")),
            room[total : total + most],
            room[total + most :],
        )
        self.groups, first = [], 0
        for (part, width), size in zip(parts, sizes, strict=True):
            self.groups.append(_Group(part, width, heads, (scores[first : first + size], shares)))
            first += size
        self._room = min(self._room, *(group.width - rule.sinks - group.longest for group in self.groups))
        self._slopes = None if rule.slopes is None else torch.tensor(rule.slopes).view(*heads, 1)
        self._shape = heads
        self._prepare()

    def _prepare(self) -> None:
        changed = self.rule.soft_cap is not None or self.rule.slopes is not None
        self._biases = [group.biases(self._slopes) for group in self.groups] if changed else None

    def advance(self) -> bool:
        """Each row sees one token more. False: there is no room for it, and this object is of no use any more."""
        if self._more == self._room:
            return False
        self._more += 1
        for group in self.groups:
            group.place(self._more)
        self._prepare()
        return True

    def _change(self, number: int, sinks: Tensor | None) -> None:
        """Scores of a group as they come of the product become what the softmax takes."""
        scores, cap = self.groups[number].scores, self.rule.soft_cap
        if cap is not None:
            scores.div_(cap).tanh_().mul_(cap)
        if self._biases is not None:
            scores.add_(self._biases[number])
        if sinks is not None:
            scores[..., -1] = sinks.view(self._shape)

    def attend(self, layer: int, queries: Tensor, out: Tensor, sinks: Tensor | None = None) -> None:
        """`queries` [tokens, heads, key_dim]; `out` [tokens, heads, value_dim] is contiguous."""
        kv, scaled = self.kv, (queries * self.rule.scale).view(-1, *self._shape, self.kv.key_dim).numpy()
        results = out.view(-1, *self._shape, kv.value_dim).numpy()
        keys, values = kv.keys[layer], kv.values[layer]
        changed = self._biases is not None or sinks is not None
        for number, group in enumerate(self.groups):
            for row, size, scores, _ in group.rows:
                _multiply(scaled[row.row], self._seen(row, size, keys, kv.key_blocks[layer]), scores)
            if changed:
                self._change(number, sinks)
            torch.softmax(group.scores, -1, out=group.shares)
            for row, size, _, shares in group.rows:
                np.matmul(shares, self._seen(row, size, values, kv.value_blocks[layer]), out=results[row.row])

    def _seen(self, row: Row, size: int, memory: Floats, blocks: Tensor) -> Floats:
        """What a row sees of a layer's keys or values, [heads, tokens, width], good until the next call."""
        if row.blocks is None:
            return memory[:, row.slot : row.slot + size]
        count, heads, width = len(row.blocks), self.kv.heads, blocks.shape[2] // self.kv.block_size
        target = self._gather[: count * blocks[:, 0].numel()].view(heads, count, -1)
        gather_blocks(blocks, row.blocks, target)
        return target.numpy().reshape(heads, -1, width)[:, row.offset : row.offset + size, : memory.shape[2]]


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


def _divide(rows: Sequence[Row], together: int, more: int = 0) -> list[tuple[list[Row], int]]:
    """Rows that share a softmax, and its width: none is shorter than half of it, or all are as short as can be.

    `more`: scores of each row that are not of tokens.
    """
    parts: list[tuple[list[Row], int]] = []
    for row in sorted(rows, key=lambda row: -row.size):
        own = -(-(row.size + more) // WIDTH) * WIDTH
        if not parts or 2 * own < parts[-1][1] or (len(parts[-1][0]) + 1) * parts[-1][1] > together:
            parts.append(([], own))
        parts[-1][0].append(row)
    return parts
