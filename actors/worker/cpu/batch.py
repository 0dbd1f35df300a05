"""One flat batch through a model: rows, each with the tokens that it computes, one after the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from .decoder import Decoder, StepAttending
from .memory.states import StepStates
from .memory.window_tables import AnyKV, TabledAttention, TabledKV

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]
Attend = Callable[[PagedKV, Sequence[Span]], StepAttending]


class BlockTables(NamedTuple):
    """Of every row of the worker: its blocks, in order, and whether these do not follow one another."""

    blocks: np.ndarray  # int64 [rows, blocks of a sequence], of several tables one after the other
    scattered: np.ndarray  # bool [rows], of several tables [rows, tables]

    def part(self, table: int) -> BlockTables:
        """One of several tables."""
        width = self.blocks.shape[1] // self.scattered.shape[1]
        return BlockTables(self.blocks[:, table * width : (table + 1) * width], self.scattered[:, table])


def row_positions(rows: Ints, counts: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """(row, position) of each token of the batch: `counts` of each row, from its position in `starts` on."""
    if (counts == 1).all():
        return rows, starts
    return np.repeat(rows, counts), counting(starts, counts)


def counting(firsts: Ints, counts: Ints) -> Ints:
    """From each of `firsts` on so many numbers, one after the other."""
    numbers: Ints = np.arange(int(counts.sum())) + np.repeat(firsts - (np.cumsum(counts) - counts), counts)
    return numbers


class BatchInputs(NamedTuple):
    """What a model computes a flat batch from: its tokens, their positions and where their KV goes (int64 [tokens])."""

    ids: Ints
    positions: Ints
    slots: np.ndarray  # int64 [tokens], over several tables [tables, tokens]
    attention: StepAttending

    def forward(self, model: Decoder, kv: AnyKV, states: StepStates | None = None) -> Tensor:
        """The last layer's output for each token; `states` of a model that keeps some."""
        ids, positions, slots = (torch.from_numpy(values) for values in self[:3])
        return model.forward(ids, positions, slots, kv, self.attention, states)


def prepare_inputs(
    attend: Attend, kv: AnyKV, tables: BlockTables, rows: Ints, counts: Ints, starts: Ints, ids: Ints
) -> BatchInputs:
    """`rows`, `counts` and `starts` as in `row_positions`; `ids` are the tokens, `attend` is a decoder's attention."""
    owners, positions = row_positions(rows, counts, starts)
    firsts = np.cumsum(counts) - counts

    def look(own: BlockTables) -> tuple[Ints, list[Span]]:
        """Where the tokens' KV goes, and where that of their sequences is."""
        slots = own.blocks[owners, positions // kv.block_size] * kv.block_size + positions % kv.block_size
        one_run = ~own.scattered[rows]
        held = [own.blocks[row] for row in rows.tolist()]  # no copies: blocks that come later are seen
        fields = (firsts.tolist(), counts.tolist(), starts.tolist(), held, one_run.tolist())
        return slots, [Span(*values) for values in zip(*fields, strict=True)]

    if isinstance(kv, TabledKV):
        parts = [look(tables.part(table)) for table in range(len(kv.tables))]
        attention = TabledAttention(kv, [spans for _, spans in parts])
        return BatchInputs(ids, positions, np.stack([slots for slots, _ in parts]), attention)
    slots, spans = look(tables)
    return BatchInputs(ids, positions, slots, attend(kv, spans))
