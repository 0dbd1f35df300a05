"""One flat batch through a model: rows, each with the tokens that it computes, one after the other."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.aligned import AlignedAttention, AnyAttention
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.paged_kv import PagedKV, Span

from .executor import CpuModel
from .states import StepStates

Ints = np.ndarray[tuple[int], np.dtype[np.int64]]


class BlockTables(NamedTuple):
    """Of every row of the worker: its blocks, in order, and whether these do not follow one another."""

    blocks: np.ndarray  # int64 [rows, blocks of a sequence]
    scattered: np.ndarray  # bool [rows]


def row_positions(rows: Ints, counts: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """(row, position) of each token of the batch: `counts` of each row, from its position in `starts` on."""
    total = int(counts.sum())
    if total == rows.size:
        return rows, starts
    return np.repeat(rows, counts), np.arange(total) + np.repeat(starts - (np.cumsum(counts) - counts), counts)


class BatchInputs(NamedTuple):
    """What a model computes a flat batch from: its tokens, their positions and where their KV goes (int64 [tokens])."""

    ids: Ints
    positions: Ints
    slots: Ints
    attention: AnyAttention

    def forward(self, model: CpuModel, kv: PagedKV, states: StepStates | None = None) -> Tensor:
        """The last layer's output for each token; `states` of a model that keeps some."""
        ids, positions, slots = (torch.from_numpy(values) for values in self[:3])
        if states is None:
            return model.forward(ids, positions, slots, kv, self.attention)
        return model.forward(ids, positions, slots, kv, self.attention, states)


def prepare_inputs(kv: PagedKV, tables: BlockTables, rows: Ints, counts: Ints, starts: Ints, ids: Ints) -> BatchInputs:
    """`rows`, `counts` and `starts` as in `row_positions`; `ids` are the tokens."""
    owners, positions = row_positions(rows, counts, starts)
    slots = tables.blocks[owners, positions // kv.block_size] * kv.block_size + positions % kv.block_size
    firsts, one_run = np.cumsum(counts) - counts, ~tables.scattered[rows]
    fields = (firsts.tolist(), counts.tolist(), starts.tolist(), tables.blocks[rows], one_run.tolist())
    spans = [Span(*values) for values in zip(*fields, strict=True)]
    make = AlignedAttention if kv.aligned else StepAttention
    return BatchInputs(ids, positions, slots, make(kv, spans, kv.spec.layers))
