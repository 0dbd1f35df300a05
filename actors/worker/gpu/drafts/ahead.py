"""Drafts that are computed before the step in which they are verified, by a graph of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any, NamedTuple

import torch
from torch import Tensor

from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.kernels.triton.sampling import Workspace, sample
from actorserve.kernels.triton.step_inputs import RowState, StepInputs, keep_tokens, make_inputs

from ....model.architecture import Architecture
from ..buffers import StepBuffers
from ..graphs import Graphs, size_for
from ..sampler import RowWork
from .speculation import DraftingRunner, at_positions


class AheadDraftingRunner(DraftingRunner, ABC):
    """Rows have drafts that lie in `_words` when the step begins."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        sizes, device = self.sizes, self.device
        self.drafting = Graphs(self.decoding.sizes, self._draft, device)
        even = sizes.rows + sizes.rows % 2  # so that each begins at a multiple of 16 bytes
        self._words = torch.zeros(sizes.drafts, even, dtype=torch.int64, device=device)  # of each row
        self._drawn = torch.zeros(sizes.rows, dtype=torch.int32, device=device)
        self._index = torch.arange(sizes.rows, device=device)
        self._workspace = Workspace.make(sizes.rows, self.model.shape.vocab_size, device)
        self._at.drafting.fill_(-1)  # there are none before the first step

    @abstractmethod
    def _draft(self, size: int) -> None:
        """Write the drafts of so many rows, which `_at.drafting` has, into `_words`; what is more than `_at.wanted`
        has no meaning, and writes nothing else."""

    def _say(self, number: int, size: int, logits: Tensor) -> Tensor:
        """Draw the rows' drafts of this number, which begins at 0; the words, int64."""
        own, drawn = self._at.drafting[:size], self._drawn[:size]
        there = own.clamp(min=0)
        rows, first = self._index[:size].where(own >= 0, -1), self.rows.state.drawn.index_select(0, there)
        parameters = at_positions(self.rows.parameters, there, first + number + 1)
        sample(logits, rows, parameters, self._workspace, drawn)
        words = drawn.long()
        keep_tokens(own, words, self._words[number])
        return words

    def _before(self, buffers: StepBuffers, work: RowWork) -> None:
        rows, draws = work.rows[work.draws > 1], work.draws[work.draws > 1]
        if not rows.size:
            return
        size = size_for(self.drafting.sizes, rows.size) or rows.size
        own, wanted = buffers.numbers.drafting, buffers.numbers.wanted
        own[:size] = -1
        own[: rows.size], wanted[: rows.size] = rows, draws - 1
        begin = len(self._numbers) - len(own) - len(wanted)
        buffers.send(self._numbers, begin, begin + len(own) + size)
        self.drafting.step(size)

    def _add_inputs(self, rows: Tensor, starts: Tensor, inputs: StepInputs) -> None:
        room, there = self._at.room[: len(rows)], rows.clamp(min=0)
        keep_tokens(rows.where(room > 0, -1), room, self.drafts.drafted)
        for number in range(self.lookup.drafts):
            places = (starts[: len(rows)] + 1 + number).where((room > number) & (rows >= 0), -1)
            keep_tokens(places, self._words[number].index_select(0, there), inputs.ids)

    def profile_steps(self) -> None:
        """What makes drafts, too."""
        super().profile_steps()
        for size in (1, self.sizes.rows):
            self.drafting.step(size)

    def _graphs(self) -> dict[str, Graphs[Any]]:
        return {**super()._graphs(), "drafts": self.drafting}


class DraftMemory(NamedTuple):
    """What has keys and values of its own, and of which type they are where nobody says so."""

    shape: Architecture
    dtype: torch.dtype
    spare: int = 0  # blocks behind those that the model has as well


class CachedDraftingRunner(AheadDraftingRunner, ABC):
    """What drafts has KV memory of its own for the blocks of the first block table, so that this serves both."""

    def __init__(self, *given: Any, **named: Any) -> None:
        """That memory is set afterwards, as the model's is (`draft_pools`)."""
        super().__init__(*given, **named)
        self.draft_pools: list[Pools] = []

    @property
    @abstractmethod
    def draft_memory(self) -> DraftMemory:
        """What it is for."""


class StepwiseDraftingRunner(CachedDraftingRunner, ABC):
    """Drafts are computed one after the other."""

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        sizes, state = self.sizes, self.rows.state
        self._draft_inputs = StepInputs.make(sizes.rows, sizes.rows, state.table.shape[1], self.device, sizes.tables)
        self._draft_inputs.fill()
        self._draft_state = RowState(state.last, torch.zeros_like(state.drawn), state.table)

    def _token_each(self, number: int, size: int, positions: Tensor, words: Tensor) -> StepInputs:
        """One token for each of so many rows, for drafts of this number: rows that want fewer are none."""
        own, wanted = self._at.drafting[:size], self._at.wanted[:size]
        inputs, sizes = self._draft_inputs.part(size, size), self.sizes
        rows, starts = own.where(wanted > number, -1), self._starts[: size + 1]
        make_inputs(rows, starts, positions, self._draft_state, inputs, sizes.block_size, 1, words, sizes.window)
        return inputs.of(0)
