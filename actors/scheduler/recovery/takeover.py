"""What a predecessor left in the worker's KV memory, read from the map and believed only if all of it fits together.

The steps that the predecessor had sent still run, before any step of the successor's. They write to no position that
the map calls computed, in whosever table it is, and to no cached block; so what is computed by the map stays so, and
the rest is computed again. Knows the map and the sequences; counts the attempt and changes nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from actorserve.shm.kv_map.map import KVMap

from ...protocol.step import MOST_JUMPS, KVLayout
from ..limits import Limits
from ..sequence import Sequence

MAX_TAKEOVERS = 3  # of one map by schedulers that then die before a step comes back: the map may be why


class Contradiction(ValueError):
    """The map cannot be what a scheduler has left; the message says why."""


@dataclass(frozen=True)
class Holding:
    """A sequence that goes on in its blocks, behind its first `computed` tokens."""

    sequence: Sequence
    blocks: list[int]
    computed: int


@dataclass(frozen=True)
class Takeover:
    """All that goes on."""

    holdings: list[Holding]
    cached: dict[int, bytes]  # keys by block
    ended: list[int]  # holders whose blocks are free: they are not known any more, or go on behind what is cached
    saved: dict[int, bytes]  # keys by snapshot

    @property
    def tokens(self) -> int:
        """Tokens that need not be computed again."""
        return sum(holding.computed for holding in self.holdings)


def read_map(kv: KVMap, sequences: dict[int, Sequence], num_blocks: int, limits: Limits, layout: KVLayout) -> Takeover:
    """What these sequences, as the request table has them, can go on with. Contradiction if it does not fit."""
    block_size, rows = limits.block_size, limits.max_num_seqs
    if (count := kv.begin_takeover()) > MAX_TAKEOVERS:
        raise Contradiction(f"{count - 1} schedulers have died with it before a step came back")
    refs = kv.holders()
    holdings = [_holding(kv, sequences[ref], num_blocks, limits) for ref in refs if ref in sequences]
    if len(holdings) > rows:
        raise Contradiction(f"{len(holdings)} sequences hold blocks, {rows} can run")
    found = Takeover(holdings, kv.cached(), [ref for ref in refs if ref not in sequences], _saved(kv, layout))
    if found.cached and max(found.cached) >= num_blocks:
        raise Contradiction(f"block {max(found.cached)} of {num_blocks} is cached")
    if len(set(found.cached.values())) < len(found.cached):
        raise Contradiction("two blocks are cached as the same prefix")
    _check_sharing(found, block_size, num_blocks)
    return found if layout.plain else _behind_the_cache(found)


def _saved(kv: KVMap, layout: KVLayout) -> dict[int, bytes]:
    """The snapshots that are found."""
    saved = kv.snapshots.cached()
    if saved and max(saved) >= layout.snapshots:
        raise Contradiction(f"snapshot {max(saved)} of {layout.snapshots} is there")
    if len(set(saved.values())) < len(saved):
        raise Contradiction("two snapshots are of the same prefix")
    return saved


def _behind_the_cache(found: Takeover) -> Takeover:
    """Where knowing a row's blocks is not enough to go on (states have moved on with the steps in flight, blocks of
    windows are in no table here), all begin again behind the longest prefix that is cached with all that it needs.
    """
    for holding in found.holdings:
        holding.sequence.has_run = True
    ended = [*found.ended, *(holding.sequence.ref for holding in found.holdings)]
    return Takeover([], found.cached, ended, found.saved)


def _holding(kv: KVMap, sequence: Sequence, num_blocks: int, limits: Limits) -> Holding:
    """One sequence's blocks. A death between `computed` and the tokens cursor leaves the last tokens to draw again."""
    table, computed, block_size = kv.held(sequence.ref), kv.computed(sequence.ref), limits.block_size
    where = f"the table of slot {sequence.slot}"
    if computed is None or computed > sequence.num_tokens + max(limits.drafts, MOST_JUMPS):
        raise Contradiction(f"{where}: {computed} tokens are computed, {sequence.num_tokens} are known")
    in_parts = computed < sequence.num_prompt_tokens or sequence.pools
    computed = 0 if sequence.whole and in_parts else min(computed, sequence.num_tokens - 1)
    if not len(table) or table.min() < 0 or table.max() >= num_blocks:
        raise Contradiction(f"{where} names a block that is not there, or none")
    # a row that decodes gets its block later
    needed = sequence.num_tokens if computed < sequence.num_tokens - 1 else computed
    if len(table) * block_size < needed:
        raise Contradiction(f"{where} has {len(table)} blocks of {block_size} for {needed} tokens")
    return Holding(sequence, table.tolist(), computed)


def _check_sharing(found: Takeover, block_size: int, num_blocks: int) -> None:
    """A block that may yet be written has one holder and is not cached; any block has one place in all tables."""
    holders, place = np.zeros(num_blocks, np.int64), np.zeros(num_blocks, np.int64)
    for holding in found.holdings:
        holders[holding.blocks] += 1
        place[holding.blocks] = np.arange(len(holding.blocks))
    cached = np.zeros(num_blocks, np.bool_)
    cached[list(found.cached)] = True
    for holding in found.holdings:
        slot, writable = holding.sequence.slot, np.array(holding.blocks[holding.computed // block_size :], np.int64)
        if (holders[writable] > 1).any() or cached[writable].any():
            raise Contradiction(f"slot {slot} writes to a block that is shared or cached")
        if (place[holding.blocks] != np.arange(len(holding.blocks))).any():
            raise Contradiction(f"a block of slot {slot} stands for another place as well")
