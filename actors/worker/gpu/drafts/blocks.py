"""Drafts that a small model says a block at a time, on a GPU: DFlash; see worker/speculative/blocks.py and
model/heads/formats.py: BlockShape.

Its entries, keys and values that each of its layers makes of the model's hidden states, are made at the end of each
forward pass, of all positions of the step, in KV memory for the same blocks as the model's. Those of positions that do
not count are written again, as the model's are. Before a step in which rows have room, a graph by the number of these
rows computes their blocks in one pass.

Keys and values of a block of drafts go to spare blocks of that memory, of which each row of a pass has its own, behind
a copy of the block of memory that is begun: a row need not have memory for as many positions as a block of drafts has.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actorserve.kernels.pages import LARGEST_GROUP, Pages
from actorserve.kernels.triton.attention.paged_decode import paged_decode, split_count
from actorserve.kernels.triton.attention.tiles import Scratch
from actorserve.kernels.triton.quantised_kv import E4M3
from actorserve.kernels.triton.rms_norm import add_rms_norm, rms_norm
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables, rotate_and_write
from actorserve.kernels.triton.step_inputs import RowState, StepInputs, make_inputs

from ....model.heads.formats import BLOCK_FINAL_NORM, BLOCK_FUSE, BLOCK_HIDDEN_NORM, BlockShape
from ...models.rope import cosines_and_sines
from ...models.sharding import Get
from ..executor import GpuBatch, GpuBuilder, GpuLayer, GpuModel, Hidden
from ..layers.scratch import processors_of
from ..layers.taps import ResidualTaps
from .ahead import CachedDraftingRunner, DraftMemory
from .words import DraftWords

AT_ONCE = 64  # rows of logits that are made at once: they are as long as the vocabulary


class BlockLayer(GpuLayer):
    """Attention and MLP of one layer, of blocks of `size` tokens."""

    def __init__(self, build: GpuBuilder, index: int, size: int, longest: int) -> None:
        super().__init__(build, index)
        assert isinstance(build.shape, BlockShape)
        self.causal, self.size, self.longest = build.shape.causal[index], size, longest
        self.processors = processors_of(build.device)

    def remember(self, seen: Tensor, inputs: StepInputs, turns: RotaryTables, pools: Pools) -> None:
        """Keep keys and values that are made of `seen` as it is; nothing is attended to."""
        shape = self.shape
        heads = self.qkv(seen).view(len(seen), -1, shape.head_dim)
        q, k, v = heads.split((shape.heads, shape.kv_heads, shape.kv_heads), 1)
        rotate_and_write(q, k, v, inputs.positions, inputs.slots, turns, pools, norms=self.norms)

    def _attend(self, q: Tensor, pools: Pools, batch: GpuBatch) -> Tensor:
        """Each position sees all up to the block's end, in causal layers up to itself.

        Positions that see the same are one query with as many heads more.
        """
        if self.causal:
            return super()._attend(q, pools, batch)
        most = LARGEST_GROUP * self.shape.kv_heads // self.shape.heads
        parts = q.unflatten(0, (-1, self.size)).split(most, 1)
        return torch.cat([self._seen(part, pools, batch) for part in parts], 1).flatten(0, 1)

    def _seen(self, q: Tensor, pools: Pools, batch: GpuBatch) -> Tensor:
        """By [rows, positions, heads, numbers] of q."""
        kv_heads, group = self.shape.kv_heads, self.shape.heads // self.shape.kv_heads
        rows, size = q.shape[:2]
        queries = q.unflatten(2, (kv_heads, group)).transpose(1, 2).flatten(1, 3)
        pages = Pages(pools.keys, pools.values, batch.inputs.blocks, batch.inputs.lengths, pools.scales)
        splits = split_count(rows, kv_heads * -(-group * size // 16), self.longest, self.processors)
        scratch = Scratch.of(rows, queries.shape[1], self.shape.head_dim, splits, q.device)
        seen = paged_decode(queries, pages, self.scoring, scratch)
        by_query: Tensor = seen.unflatten(1, (kv_heads, size, group)).transpose(1, 2).flatten(2, 3)
        return by_query


class BlockDrafter:
    """What it computes; it keeps weights, and its caller the KV memory."""

    def __init__(self, shape: BlockShape, get: Get, target: GpuModel, max_length: int, drafts: int) -> None:
        """For texts of so many tokens, and so many drafts."""
        build = GpuBuilder(shape, get, target.dtype, target.device)
        longest = max_length + drafts
        self.shape, self.size = shape, 1 + drafts
        self.fuse = build.linear(BLOCK_FUSE)
        self.hidden_norm, self.final_norm = build.tensor(BLOCK_HIDDEN_NORM), build.tensor(BLOCK_FINAL_NORM)
        self.layers = [BlockLayer(build, index, self.size, longest) for index in range(shape.layers)]
        self.words = DraftWords(shape, get, target, build)
        cos, sin = cosines_and_sines(shape.rope, shape.head_dim, longest)
        self.turns = RotaryTables(cos.to(target.device), sin.to(target.device))

    def blocks_of_row(self, block_size: int) -> int:
        """Spare ones: a block of drafts may begin with the last token of a block of memory."""
        return -(-(block_size - 1 + self.size) // block_size)

    def read(self, states: Tensor, inputs: StepInputs, pools: list[Pools]) -> None:
        """Keep what each layer makes of hidden states of the model."""
        seen = rms_norm(self.fuse(states), self.hidden_norm, self.shape.norm_eps)
        for layer, own in zip(self.layers, pools, strict=True):
            layer.remember(seen, inputs, self.turns, own)

    def forward(self, batch: GpuBatch, pools: list[Pools]) -> Tensor:
        """The last norm's output for each token of blocks."""
        eps, scale = self.shape.norm_eps, self.shape.embedding_scale
        residual = self.words.embed(batch.inputs.ids)
        if scale != 1:
            residual = residual * scale
        normed = rms_norm(residual, self.layers[0].attention_gain, eps)
        gains = [*(layer.attention_gain for layer in self.layers[1:]), self.final_norm]
        for layer, own, gain in zip(self.layers, pools, gains, strict=True):
            normed = add_rms_norm(layer(normed, residual, self.turns, own, batch), residual, gain, eps)
        return normed


class BlockDraftingRunner(CachedDraftingRunner):
    """Rows have drafts of blocks."""

    def __init__(self, *given: Any, drafter: BlockDrafter, **named: Any) -> None:
        super().__init__(*given, **named)
        sizes, model, reads = self.sizes, self.model, drafter.shape.states.layers
        assert drafter.size == 1 + sizes.drafts and reads
        self.drafter, size = drafter, drafter.size
        self._states = torch.zeros(
            sizes.listed_tokens, len(reads) * drafter.shape.target_hidden, dtype=model.dtype, device=self.device
        )
        model.taps = ResidualTaps(reads, self._states)
        self._spare_of_row = drafter.blocks_of_row(sizes.block_size)
        self._numbers_of_spare = torch.arange(self._spare_of_row, device=self.device)
        self._width = self.rows.state.table.shape[1] // sizes.tables  # of the first table
        width = self._width + self._spare_of_row
        self._block_inputs = StepInputs.make(sizes.rows, sizes.rows * size, width, self.device)
        self._block_inputs.fill()
        self._block_starts = torch.arange(sizes.rows + 1, device=self.device) * size
        self._begins = self._block_starts.int()
        given_ids = torch.full((sizes.rows, size), drafter.shape.mask, dtype=torch.int64, device=self.device)
        given_ids[:, 0] = -1  # the token that was drawn last
        self._given = given_ids.flatten()

    @property
    def draft_memory(self) -> DraftMemory:
        return DraftMemory(self.drafter.shape, self.model.dtype, self.sizes.rows * self._spare_of_row)

    def _forward(self, batch: GpuBatch) -> Hidden:
        hidden = super()._forward(batch)
        self.drafter.read(self._states[: len(hidden.added)], batch.inputs.of(0), self.draft_pools)
        return hidden

    def _draft(self, size: int) -> None:
        """One pass, for the drafts of so many rows."""
        count = self.drafter.size
        inputs = self._lend(size)
        batch = GpuBatch(inputs, 0, self._begins[: size + 1], self.scratch.of(1))
        hidden = self.drafter.forward(batch, self.draft_pools).unflatten(0, (size, count)).transpose(0, 1)[1:]
        number = 0
        for part in hidden.split(max(1, AT_ONCE // size)):
            for logits in self.drafter.words.logits(part.flatten(0, 1)).split(size):
                self._say(number, size, logits)
                number += 1

    def _lend(self, size: int) -> StepInputs:
        """What blocks of so many rows are, in spare blocks behind a copy of what stands before them."""
        own, state, block_size = self._at.drafting[:size], self.rows.state, self.sizes.block_size
        there = own.clamp(min=0)
        first = state.drawn.index_select(0, there)
        table, spare = state.table.index_select(0, there)[:, : self._width], self._spare(size)
        begun = first.div(block_size, rounding_mode="floor")[:, None]
        source = table.gather(1, begun.clamp(max=self._width - 1))
        for pools in self.draft_pools:
            _copy(pools, source.flatten().long(), spare[:, 0].long())
        lent = torch.cat([table, torch.zeros_like(spare)], 1)
        lent.scatter_(1, begun + self._numbers_of_spare, spare)
        rows = self._index[:size].where(own >= 0, -1)
        inputs = self._block_inputs.part(size, size * self.drafter.size)
        lender = RowState(state.last.index_select(0, there), torch.zeros_like(first), lent)
        starts, given = self._block_starts[: size + 1], self._given[: len(inputs.ids)]
        make_inputs(rows, starts, first, lender, inputs, block_size, self.drafter.size, given)
        return inputs

    def _spare(self, size: int) -> Tensor:
        """Blocks of so many rows, int32 [rows, blocks]."""
        each = self._spare_of_row
        first = len(self.draft_pools[0].keys) - self.sizes.rows * each
        return torch.arange(first, first + size * each, dtype=torch.int32, device=self.device).view(size, each)


def _copy(pools: Pools, source: Tensor, target: Tensor) -> None:
    """What stands in blocks, as it is kept."""
    keys, values, scales, _ = pools
    for part in (keys, values, *(scales or ())):
        numbers = part.view(torch.uint8) if part.dtype == E4M3 else part
        numbers.index_copy_(0, target, numbers.index_select(0, source))
