"""In which parts a step goes through a model that keeps states of its rows, whose layers follow the order of a row's
tokens: rows that go on by one token from their states side by side, any other row alone.

Parts are slices of the step, whose numbers the device has already; nothing more is sent there, or waited for.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.step_inputs import StepInputs

from ...cpu.memory.states import Ints, RowStates

if TYPE_CHECKING:
    from ..executor import GpuBatch


class Group(NamedTuple):
    """Rows of a step that lie one behind the other and have as many tokens each."""

    begin: int  # the first of them
    end: int
    first: int  # its first token
    size: int  # tokens of each
    past: int  # positions that the row with fewest has before these; 0: there are no states yet
    later: int = 0  # tokens that the step computes of the row behind these

    @property
    def rows(self) -> slice:
        return slice(self.begin, self.end)

    @property
    def tokens(self) -> slice:
        return slice(self.first, self.first + (self.end - self.begin) * self.size)

    def of(self, batch: GpuBatch) -> GpuBatch:
        """A step of these alone."""
        ids, positions, slots, lengths, blocks = batch.inputs
        own = lengths[self.rows] - self.later if self.later else lengths[self.rows]
        places = slots[..., self.tokens].clone()  # aligned as memory of its own is, for which kernels are compiled
        inputs = StepInputs(ids[self.tokens], positions[self.tokens], places, own, blocks[self.rows])
        if self.size == 1:
            return batch._replace(inputs=inputs, decoding=self.end - self.begin, starts=None, kept=None)
        starts = torch.arange(0, 2 * self.size, self.size, dtype=torch.int32, device=ids.device)
        return batch._replace(inputs=inputs, decoding=0, starts=starts, kept=None)


class GroupRules(NamedTuple):
    """What a model's layers can do."""

    together: bool  # rows that go on by one token are computed side by side
    by_token: bool  # from states a row goes on by one token only

    def of(self, counts: Ints, starts: Ints) -> list[Group]:
        """Of a step's rows: of each so many tokens, from these positions on. Those of one token are to come first: for
        others no memory is kept in which attention of several would be divided."""
        groups: list[Group] = []
        first = 0
        for row, (count, past) in enumerate(zip(counts.tolist(), starts.tolist(), strict=True)):
            last = groups[-1] if groups and self.together and count == 1 and past and first == row else None
            if last is not None and last.past:
                groups[-1] = last._replace(end=row + 1, past=min(past, last.past))
            else:
                groups += self._alone(Group(row, row + 1, first, count, past))
            first += count
        return groups

    def _alone(self, group: Group) -> Iterator[Group]:
        """A row in as many parts as it must be computed in."""
        if not self.by_token or not group.past:
            yield group
            return
        for number in range(group.size):
            past, later = group.past + number, group.size - 1 - number
            yield group._replace(first=group.first + number, size=1, past=past, later=later)

    def of_nobody(self, batch: GpuBatch) -> list[Group]:
        """Of a step that is tried for the memory that it takes: all tokens of chunks are one row's."""
        decoding, tokens = batch.decoding, len(batch.inputs.ids)
        groups = [Group(0, decoding, 0, 1, 1)] if decoding else []
        if tokens > decoding:
            groups.append(Group(decoding, decoding + 1, decoding, tokens - decoding, 0 if self.by_token else 1))
        return groups


class KeptRows(NamedTuple):
    """What a step's rows have beside keys and values."""

    states: RowStates
    rows: Tensor  # int64, on the device: the place of each row's
    groups: list[Group]
