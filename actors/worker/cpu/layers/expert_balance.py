"""--enable-eplb: which member of a group has which experts follows from how often each is chosen.

A step waits for the member whose experts have most to do. Each layer counts for a while what tokens choose, then the
most and the least loaded member give each other an expert, as long as that brings their loads together. Members need no
messages for it but one sum of the counts, which makes sure that all decide alike: they see the same tokens, so that a
layer comes to its turn at the same step everywhere. What a member gets it makes of the checkpoint anew, as at the
start. Layers take turns, so that a step waits for few experts at once. A group that is started again begins as any.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from .experts import Expert, Experts

MOST_SWAPS = 4  # of a layer at once
MARGIN = 0.05  # of the mean load: what is nearer together stays
log = logging.getLogger("worker")
Numbers = np.ndarray[tuple[int], np.dtype[np.int64]]
Loads = np.ndarray[tuple[int], np.dtype[np.float64]]


class Group(Protocol):
    """The members."""

    rank: int
    size: int

    def all_reduce(self, x: Tensor) -> Tensor: ...


class ExpertBalance:
    """Of one layer, in one member."""

    def __init__(
        self,
        name: str,
        experts: Experts,
        group: Group,
        make: Callable[[int], Expert],
        interval: int,
        window: int,
        turn: int = 0,
    ) -> None:
        """`make` reads an expert of the checkpoint; the layer comes to its turn every `interval` steps, `turn` steps
        later than the first, by what was chosen in the last `window` of them.
        """
        own = len(experts.experts)
        self._name, self._experts, self._group, self._make = name, experts, group, make
        self._interval, self._window, self._steps = interval, window, -turn
        self.owners: Numbers = np.repeat(np.arange(group.size), own)
        self._slots: Numbers = np.tile(np.arange(own), group.size)
        self._counts: Numbers = np.zeros(own * group.size, np.int64)

    def places(self) -> Numbers:
        """Where this member has each expert; -1 for those of others."""
        found: Numbers = np.where(self.owners == self._group.rank, self._slots, -1)
        return found

    def see(self, chosen: Tensor) -> None:
        """Before a step's experts are computed: what its tokens have chosen."""
        self._steps += 1
        if self._steps > self._interval - self._window:
            self._counts += np.bincount(chosen.reshape(-1).numpy(), minlength=self._counts.size)
        if self._steps < self._interval:
            return
        self._steps = 0
        loads = self._group.all_reduce(torch.from_numpy(self._counts.astype(np.float64))).numpy()
        self._counts[:] = 0
        self._follow(loads)

    def _follow(self, loads: Loads) -> None:
        before = spread(loads, self.owners)
        swaps = find_swaps(loads, self.owners)
        for first, second in swaps:
            self._swap(first, second)
        if swaps:
            self._experts.places = self.places()
            told = self._name, len(swaps), before, spread(loads, self.owners)
            log.info("experts of %s: %d swaps; the most loaded member has %.2f of the mean, and then %.2f", *told)

    def _swap(self, first: int, second: int) -> None:
        owners, slots, mine = self.owners, self._slots, self._group.rank
        for own, other in ((first, second), (second, first)):
            if owners[own] == mine:
                self._experts.experts[slots[own]] = self._make(other)
        owners[[first, second]] = owners[[second, first]]
        slots[[first, second]] = slots[[second, first]]


def spread(loads: Loads, owners: Numbers) -> float:
    """The largest member's load, in parts of the mean."""
    by_member = np.bincount(owners, weights=loads)
    return float(by_member.max() / by_member.mean()) if by_member.any() else 1.0


def find_swaps(loads: Loads, owners: Numbers) -> list[tuple[int, int]]:
    """Pairs of experts that change their members, in this order; the arrays are left as they are."""
    owners, found = owners.copy(), list[tuple[int, int]]()
    while len(found) < MOST_SWAPS:
        by_member = np.bincount(owners, weights=loads)
        most, least = int(by_member.argmax()), int(by_member.argmin())
        gap = by_member[most] - by_member[least]
        if gap <= MARGIN * by_member.mean():
            break
        heavy, light = np.flatnonzero(owners == most), np.flatnonzero(owners == least)
        moved = loads[heavy][:, None] - loads[light][None, :]
        missed = np.where((moved > 0) & (moved < gap), np.abs(moved - gap / 2), np.inf)
        if not np.isfinite(missed).any():
            break
        row, column = divmod(int(missed.argmin()), light.size)
        first, second = int(heavy[row]), int(light[column])
        owners[[first, second]] = owners[[second, first]]
        found.append((first, second))
    return found
