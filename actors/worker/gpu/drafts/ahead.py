"""Drafts that are computed before the step in which they are verified, by a graph of their own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor

from actorserve.kernels.triton.sampling import Workspace
from actorserve.kernels.triton.step_inputs import StepInputs, keep_tokens

from ..buffers import StepBuffers
from ..graphs import Graphs, size_for
from ..sampler import RowWork
from .speculation import DraftingRunner


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

    @abstractmethod
    def _draft(self, size: int) -> None:
        """Write the drafts of so many rows, which `_at.drafting` has, into `_words`."""

    def _before(self, buffers: StepBuffers, work: RowWork) -> None:
        rows = work.rows[work.draws > 1]
        if not rows.size:
            return
        size = size_for(self.drafting.sizes, rows.size) or rows.size
        own = buffers.numbers.drafting
        own[:size] = -1
        own[: rows.size] = rows
        begin = len(self._numbers) - len(own)
        buffers.send(self._numbers, begin, begin + size)
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
