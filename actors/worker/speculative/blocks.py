"""A small model that drafts a block of tokens in one pass, on a CPU: DFlash (model/heads/formats.py: BlockShape).

It has KV memory for the same blocks as the model's. Its entries there (entries.py), keys and values of its layers, are
made of the model's hidden states alone: a block that is found by its prefix holds what the row would have computed.

Keys and values of a block of drafts are never written behind them: rows need not have memory for so many positions, and
what they have may be shared. They go to spare blocks of the same memory, together with a copy of the entries of the
block that is begun. A block is as long as num_speculative_tokens says, also where the row wants fewer of its drafts:
what is said of a position depends on the masks behind it.

Of a group of workers each has all of it, as with other heads (recurrent.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

import msgspec
import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.aligned import AnyAttention
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.paged_kv import PagedKV, Span
from actorserve.kernels.cpu.pool_memory import QuantisedPool
from actorserve.kernels.cpu.sampling import Parameters, sample

from ...model.heads.formats import BLOCK_FINAL_NORM, BLOCK_FUSE, BLOCK_HIDDEN_NORM, BlockShape
from ...model.memory.kv import LayerAttention
from ..cpu.batch import BlockTables, row_positions
from ..cpu.builder import CpuBuilder
from ..cpu.decoder_layer import CpuLayer
from ..cpu.executor import CpuModel
from ..cpu.layers.rotation import rotation_table
from ..models.sharding import Get
from .entries import EntriesProposer
from .verifier import DraftBatch, Ints, Tokens, share_drafts
from .words import DraftWords


class BlockAttention:
    """Attention of blocks of `size` queries: each sees all keys up to the block's end, in causal layers up to its own.

    Queries that see the same are one query with as many heads more.
    """

    def __init__(self, kv: PagedKV, spans: Sequence[Span], size: int, causal: Sequence[bool]) -> None:
        """`spans` are of `size` tokens each, one behind the other."""
        self.size, self.causal = size, causal
        layers = [layer for layer in kv.spec.layers if layer is not None]
        self._groups = [(layer.kv_heads, layer.heads // layer.kv_heads) for layer in layers]
        wide = [msgspec.structs.replace(layer, heads=layer.heads * size) for layer in layers]
        ends = [Span(number, 1, span.position + size - 1, span.blocks, False) for number, span in enumerate(spans)]
        self._by_block = StepAttention(kv, ends, _only(wide, [not own for own in causal]))
        self._by_query = StepAttention(kv, spans, _only(layers, causal))

    def __call__(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """As StepAttention."""
        if self.causal[layer]:
            return self._by_query(layer, queries, sinks)
        kv_heads, group = self._groups[layer]
        by_block = queries.unflatten(0, (-1, self.size)).unflatten(2, (kv_heads, group)).transpose(1, 2)
        out = self._by_block(layer, by_block.flatten(1, 3), sinks)
        by_query: Tensor = out.unflatten(1, (kv_heads, self.size, group)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
        return by_query


def _only(layers: Sequence[LayerAttention], chosen: Sequence[bool]) -> list[LayerAttention | None]:
    return [layer if own else None for layer, own in zip(layers, chosen, strict=True)]


class BlockDrafter:
    """What it computes; it keeps weights, and its caller the KV memory."""

    def __init__(self, shape: BlockShape, get: Get, target: CpuModel, max_length: int, drafts: int) -> None:
        """For texts of so many tokens, and so many drafts."""
        build = CpuBuilder(shape, get, target.precision, None, False)
        self.shape, self.target, self.size = shape, target, 1 + drafts
        self.fuse = build.linear(BLOCK_FUSE)
        self.hidden_norm, self.final_norm = build.norm(BLOCK_HIDDEN_NORM), build.norm(BLOCK_FINAL_NORM)
        self.layers = [CpuLayer(build, build.layer(index), index) for index in range(shape.layers)]
        self.words = DraftWords(shape, get, target, build)
        self.rotations = rotation_table(shape.rope, shape.head_dim, max_length + drafts)

    def read(self, states: Tensor, positions: Tensor, slots: Tensor, kv: PagedKV) -> None:
        """Keep what each layer makes of hidden states of the model."""
        seen, rotations = self.hidden_norm(self.fuse(states)), self.rotations[positions][:, None]
        for layer in self.layers:
            layer.remember(seen, rotations, slots, kv)

    def forward(self, ids: Tensor, positions: Tensor, slots: Tensor, kv: PagedKV, attention: BlockAttention) -> Tensor:
        """The last norm's output for each token of blocks."""
        x, rotations = self.words.embed(ids), self.rotations[positions][:, None]
        if self.shape.embedding_scale != 1:
            x = x * self.shape.embedding_scale
        for layer in self.layers:
            layer(x, rotations, slots, kv, cast(AnyAttention, attention))
        return self.final_norm(x)


class BlockProposer(EntriesProposer):
    """The proposer of `--speculative-config '{"method": "dflash", …}'`."""

    def __init__(self, drafter: BlockDrafter, kv: PagedKV, rows: int, spare: np.ndarray) -> None:
        """`spare`: blocks of `kv`, of each row that drafts at the same time."""
        super().__init__(drafter.target, drafter.shape.states, rows)
        self.drafter, self.kv = drafter, kv
        self._spare = spare

    def make_entries(self, batch: tuple[Ints, Ints, Ints], tables: BlockTables, tokens: Tokens, states: Tensor) -> None:
        """See EntriesProposer."""
        owners, positions = row_positions(*batch)
        slots = _slots(self.kv.block_size, tables.blocks[owners, positions // self.kv.block_size], positions)
        self.drafter.read(states, torch.from_numpy(positions), torch.from_numpy(slots), self.kv)

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer."""
        drafted = self.begin(work, tokens)
        some = np.flatnonzero(drafted)
        for first in range(0, some.size, len(self._spare)):
            part = some[first : first + len(self._spare)]
            self._draft(work, part, drafted[part], tokens)
        share_drafts(self.target.group, work, drafted, tokens)
        return drafted

    def _draft(self, work: DraftBatch, some: Ints, counts: Ints, tokens: Tokens) -> None:
        """One pass, for so many drafts of these rows of the step."""
        rows, starts, size = work.rows[some], work.starts[some], self.drafter.size
        tables = self._lend(rows, starts, work.tables)
        owners, positions = row_positions(np.arange(len(rows)), np.full(len(rows), size), starts)
        slots = _slots(self.kv.block_size, tables[owners, positions // self.kv.block_size], positions)
        ids = np.full((len(rows), size), self.drafter.shape.mask)
        ids[:, 0] = tokens[rows, starts]
        spans = [Span(n * size, size, start, tables[n], False) for n, start in enumerate(starts.tolist())]
        attention = BlockAttention(self.kv, spans, size, self.drafter.shape.causal)
        flat, places, where = (torch.from_numpy(values) for values in (ids.reshape(-1), positions, slots))
        hidden = self.drafter.forward(flat, places, where, self.kv, attention)
        owners, behind = row_positions(np.arange(len(rows)), counts, np.ones_like(counts))
        logits = self.drafter.words.logits(hidden[torch.from_numpy(owners * size + behind)])
        positions = starts[owners] + behind
        parameters: Parameters = work.sampling.of(rows[owners])._replace(position=positions)
        tokens[rows[owners], positions] = sample(logits, parameters)

    def _lend(self, rows: Ints, starts: Ints, tables: BlockTables) -> np.ndarray:
        """Their tables with spare blocks from the positions `starts` on, behind a copy of what is before these."""
        size, spare = self.kv.block_size, self._spare[: len(rows)]
        firsts, begun = np.divmod(starts, size)
        lent = np.zeros((len(rows), int(firsts.max()) + spare.shape[1]), np.int64)
        held = min(lent.shape[1], tables.blocks.shape[1])
        lent[:, :held] = tables.blocks[rows, :held]
        some = np.flatnonzero(begun)
        owners, offsets = row_positions(some, begun[some], np.zeros_like(some))
        source, target = lent[owners, firsts[owners]], spare[owners, 0]
        _copy(self.kv, *(torch.from_numpy(_slots(size, blocks, offsets)) for blocks in (source, target)))
        np.put_along_axis(lent, firsts[:, None] + np.arange(spare.shape[1]), spare, 1)
        return lent


def _slots(block_size: int, blocks: np.ndarray, positions: Ints) -> Ints:
    """Where positions lie that these blocks hold."""
    return blocks * block_size + positions % block_size


def _copy(kv: PagedKV, source: Tensor, target: Tensor) -> None:
    """What stands in these slots of all layers, as it is kept."""
    for memory in kv.pools:
        pool = memory.pool
        for part in (pool.codes, pool.scales) if isinstance(pool, QuantisedPool) else (pool,):
            assert isinstance(part, Tensor), "keys and values have widths of their own"
            part.index_copy_(3, target, part.index_select(3, source))
