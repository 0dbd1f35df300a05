"""Drafts that a smaller model of the same vocabulary says, on a GPU; see worker/speculative/draft_model.py.

It has KV memory of its own for the same blocks, so that a row's table serves both models. Before a step in which rows
have room, one graph by the number of these rows runs it as often as there are drafts, from the token that was drawn
last, each time of one token a row; it draws as the model does, with the same random number of (seed, position). In the
forward pass of any step it then computes all of the step's tokens, too: so its keys and values are there for prompts
and for the last draft, whatever will count.
"""

from __future__ import annotations

from typing import Any

import torch

from actorserve.kernels.triton.paged_decode import Scratch, split_count
from actorserve.kernels.triton.rotary_kv import Pools
from actorserve.kernels.triton.sampling import sample
from actorserve.kernels.triton.step_inputs import RowState, StepInputs, keep_tokens, make_inputs

from ..executor import GpuBatch, GpuModel, Hidden
from .ahead import AheadDraftingRunner
from .speculation import at_positions


class ModelDraftingRunner(AheadDraftingRunner):
    """Rows have drafts of a model."""

    def __init__(self, *given: Any, draft: GpuModel, **named: Any) -> None:
        """As DraftingRunner. The draft model's KV memory is set afterwards, as the model's is (`draft_pools`)."""
        super().__init__(*given, **named)
        sizes, device = self.sizes, self.device
        self.draft = draft
        self.draft_pools: list[Pools] = []
        self._draft_inputs = StepInputs.make(sizes.rows, sizes.rows, self.rows.state.table.shape[1], device)
        self._draft_inputs.fill()
        self._state = RowState(self.rows.state.last, torch.zeros_like(self.rows.state.drawn), self.rows.state.table)

    def _draft(self, size: int) -> None:
        """The drafts of so many rows, on the buffers."""
        own, state, block_size = self._at.drafting[:size], self.rows.state, self.sizes.block_size
        there = own.clamp(min=0)
        rows, first = self._index[:size].where(own >= 0, -1), state.drawn.index_select(0, there)
        words = state.last.index_select(0, there)
        inputs, starts, drawn = self._draft_inputs.part(size, size), self._starts[: size + 1], self._drawn[:size]
        batch = GpuBatch(inputs, size, None, self._draft_scratch(size))
        for number in range(self.lookup.drafts):
            make_inputs(own, starts, first + number, self._state, inputs, block_size, 1, words)
            hidden = self.draft.forward(batch, self.draft_pools)
            logits = self.draft.logits(self.draft.norm(hidden))
            parameters = at_positions(self.rows.parameters, there, first + number + 1)
            sample(logits, rows, parameters, self._workspace, drawn)
            words = drawn.long()
            keep_tokens(own, words, self._words[number])

    def _draft_scratch(self, rows: int) -> Scratch:
        shape = self.draft.shape
        splits = split_count(rows, shape.kv_heads, self.sizes.length, self.scratch.processors)
        return Scratch.of(rows, shape.heads, shape.head_dim, splits, self.device)

    def _forward(self, batch: GpuBatch) -> Hidden:
        own = batch._replace(scratch=self._draft_scratch(max(1, batch.decoding)), chunk_scratch=None)
        self.draft.forward(own, self.draft_pools)
        return super()._forward(batch)
