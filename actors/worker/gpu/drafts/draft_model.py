"""Drafts that a smaller model of the same vocabulary says, on a GPU; see worker/speculative/draft_model.py.

It has KV memory of its own for the same blocks, so that a row's table serves both models. Before a step in which rows
have room, one graph by the number of these rows runs it as often as there are drafts, from the token that was drawn
last, each time of one token a row; it draws as the model does, with the same random number of (seed, position). In the
forward pass of any step it then computes all of the step's tokens, too: so its keys and values are there for prompts
and for the last draft, whatever will count.
"""

from __future__ import annotations

from typing import Any

from actorserve.kernels.triton.attention.tiles import Scratch

from ..executor import GpuBatch, GpuModel, Hidden
from ..layers.scratch import attention_of, decode_splits
from .ahead import DraftMemory, StepwiseDraftingRunner


class ModelDraftingRunner(StepwiseDraftingRunner):
    """Rows have drafts of a model."""

    def __init__(self, *given: Any, draft: GpuModel, **named: Any) -> None:
        super().__init__(*given, **named)
        self.draft = draft

    @property
    def draft_memory(self) -> DraftMemory:
        return DraftMemory(self.draft.shape, self.draft.dtype)

    def _draft(self, size: int) -> None:
        """The drafts of so many rows, on the buffers."""
        there = self._at.drafting[:size].clamp(min=0)
        first = self.rows.state.drawn.index_select(0, there)
        words, scratch = self.rows.state.last.index_select(0, there), self._draft_scratch(size)
        for number in range(self.lookup.drafts):
            inputs = self._token_each(number, size, first + number, words)
            hidden = self.draft.forward(GpuBatch(inputs, size, None, scratch), self.draft_pools)
            words = self._say(number, size, self.draft.logits(self.draft.norm(hidden)))

    def _draft_scratch(self, rows: int) -> Scratch:
        layer = attention_of(self.draft.shape)
        splits = decode_splits(layer, rows, self.sizes.length, self.scratch.processors)
        return Scratch.of(rows, layer.heads, layer.value_dim, splits, self.device)

    def _forward(self, batch: GpuBatch) -> Hidden:
        own = batch._replace(scratch=self._draft_scratch(max(1, batch.decoding)), chunk_scratch=None)
        self.draft.forward(own, self.draft_pools)
        return super()._forward(batch)
