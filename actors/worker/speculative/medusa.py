"""Medusa's heads on a CPU (model/heads/formats.py): each says one more token ahead, all of one hidden state.

They keep no KV. What they have to see is the model's last hidden state, before the token that stands last.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.kernels.cpu.sampling import Parameters, sample

from ...model.heads.formats import MEDUSA_STATES, MedusaShape, block_name, out_name
from ..cpu.executor import CpuModel
from ..models.sharding import Get
from ..quantization.base import CpuLinear, LinearTensors
from ..quantization.none import cpu_linear
from .verifier import Computed, DraftBatch, Ints, Tokens, read_states, share_drafts


class MedusaHead(NamedTuple):
    """One of them."""

    blocks: tuple[CpuLinear, ...]
    out: CpuLinear | None  # None: the model's own

    def logits(self, x: Tensor, target: CpuModel) -> Tensor:
        """Logits of the token that it says, of the model's last hidden states."""
        for block in self.blocks:
            x = x + F.silu(block(x))
        return target.logits_of_normed(x) if self.out is None else self.out(x).float()


def load_heads(shape: MedusaShape, get: Get, dtype: torch.dtype, count: int) -> list[MedusaHead]:
    """The first `count`."""

    def linear(name: str, biased: bool) -> CpuLinear:
        stem = name.removesuffix("weight")
        return cpu_linear(LinearTensors(lambda kind, dtype: get(f"{stem}{kind}").to(dtype), dtype, biased))

    return [
        MedusaHead(
            tuple(linear(block_name(head, block), shape.biased) for block in range(shape.blocks)),
            linear(out_name(head), False) if shape.own_outs else None,
        )
        for head in range(count)
    ]


class MedusaProposer:
    """The proposer of `--speculative-config '{"method": "medusa", …}'`."""

    follows = True

    def __init__(self, heads: list[MedusaHead], target: CpuModel, rows: int) -> None:
        self.heads, self.target = heads, target
        self.reads = MEDUSA_STATES
        self._hidden = torch.zeros(rows, target.shape.hidden_size, dtype=target.dtype)
        self._known = np.zeros(rows, np.int64)  # tokens behind the first of which no hidden state is there

    def place(self, row: int, computed: int) -> None:
        """A sequence takes a row; nothing is drafted before its first tokens are observed."""
        self._known[row] = 0

    def read(self, hidden: Tensor, index: Tensor | slice) -> Tensor:
        """See Observer."""
        return read_states(self.target, self.reads, hidden, index)

    def observe(self, computed: Computed, tokens: Tokens) -> None:
        """Keep the last state of each row."""
        last = torch.from_numpy(np.cumsum(computed.counts) - 1)
        self._hidden[torch.from_numpy(computed.rows)] = computed.states[last]
        self._known[computed.rows] = computed.starts + computed.counts + 1

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer."""
        known = work.starts + work.pending
        drafted = np.where(self._known[work.rows] == known, work.room, 0)
        for number, head in enumerate(self.heads[: int(drafted.max(initial=0))]):
            drawing = np.flatnonzero(drafted > number)
            rows, positions = work.rows[drawing], known[drawing] + number
            logits = head.logits(self._hidden[torch.from_numpy(rows)], self.target)
            parameters: Parameters = work.sampling.of(rows)._replace(position=positions)
            tokens[rows, positions] = sample(logits, parameters)
        share_drafts(self.target.group, work, drafted, tokens)
        return drafted
