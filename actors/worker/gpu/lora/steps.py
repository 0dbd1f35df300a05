"""Steps in which rows have adapters: which tokens have which slot, and graphs of their own.

A step without any is replayed by the graphs that there are without adapters, so that it costs what it would. The
others differ by the launches of each product (sites.py), over a vector of numbers that stays (blocks.py); which slots
there are in it, and what these hold, no graph knows.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
import torch

from ..buffers import Sizes, StepBuffers
from ..graphs import Graphs, StepSize
from .blocks import BlockRoom, Ints
from .slots import AdapterSlots

Told = tuple[int, Ints, Ints | None]  # tokens of a graph, rows, and what each computes, if it is not one


class Computed(Protocol):
    """What computes the steps."""

    dtype: torch.dtype
    batch_invariant: bool


class AdaptedSteps:
    """Of one runner."""

    def __init__(
        self,
        slots: AdapterSlots,
        sizes: Sizes,
        model: Computed,
        decoding: Graphs[int],
        uneven: Graphs[int],
        mixed: Graphs[StepSize],
    ) -> None:
        """`decoding`, `uneven`, `mixed`: the same without adapters."""
        self.slots, self.sites = slots, slots.sites
        self._of_row = np.full(sizes.rows, -1, np.int64)
        self._room = BlockRoom(sizes.listed_tokens, self.sites.count, model.dtype, model.batch_invariant)
        self._vector = torch.full((self._room.size,), -1, dtype=torch.int32, device=self.sites.device)
        self._last: Told | None = None  # what the device was told last, and nothing since
        self.decoding, self.uneven = decoding.under(self.giving), uneven.under(self.giving)
        self.mixed = mixed.under(lambda size: self.giving(size.tokens))

    def giving(self, tokens: int) -> AbstractContextManager[None]:
        """Meanwhile a forward pass of so many tokens runs, or is captured."""
        return self.sites.giving(self._room.given(self._vector, tokens))

    def place(self, row: int, adapter: int) -> None:
        """A sequence takes a row, with an adapter that is there; 0: with none."""
        self._of_row[row] = self.slots.slot_of[adapter] if adapter else -1
        self._last = None

    def begin(self, buffers: StepBuffers, tokens: int, rows: Ints, counts: Ints | None = None) -> bool:
        """A step of these rows, as large as `tokens`; None: each computes one. Whether any of them has an adapter."""
        own = self._of_row[rows]
        if (own < 0).all():
            return False
        if self._last is None or not _same(self._last, (tokens, rows, counts)):
            each = own if counts is None else np.repeat(own, counts)
            buffers.send_adapters(self._vector, self._room.fill(buffers.adapters, each, tokens))
            self._last = tokens, rows, counts
        return True


def _same(one: Told, other: Told) -> bool:
    each: Iterable[tuple[Any, Any]] = zip(one[1:], other[1:], strict=True)
    return one[0] == other[0] and all(
        a is b or (a is not None and b is not None and np.array_equal(a, b)) for a, b in each
    )
