"""Heads that draft token by token on a CPU: EAGLE-1 to -3 and multi-token prediction (model/heads/formats.py).

A head has KV memory of one layer for the same blocks as the model's. Its entry of position p (entries.py) is made of
the model's hidden state there and of the token at p + 1. Of a block that is found by its prefix the last entry may have
been made of another next token, which costs accepted drafts, never right tokens.

From the last entry's output the next token is drafted, and from what the head makes of that the one after it; entries
of drafts lie behind the known ones, and are written anew when the model has computed their positions.

Of a group of workers each has the whole head, since all have the hidden states; the model's embeddings and its head, of
which each has a part, are computed with together. Drafts of the first count for all.
"""

from __future__ import annotations

from typing import cast

import numpy as np
import torch
from torch import Tensor

from actorserve.kernels.cpu.aligned import AnyAttention
from actorserve.kernels.cpu.paged_kv import PagedKV
from actorserve.kernels.cpu.sampling import Parameters, sample

from ...model.heads.formats import RecurrentShape
from ..cpu.batch import BatchInputs, BlockTables, prepare_inputs, row_positions
from ..cpu.builder import CpuBuilder
from ..cpu.decoder_layer import CpuLayer, step_attention
from ..cpu.executor import CpuModel
from ..cpu.layers.rotation import rotation_table
from ..models.sharding import Get
from .entries import EntriesProposer
from .verifier import DraftBatch, Ints, Tokens, share_drafts
from .words import DraftWords


class RecurrentHead:
    """What a head computes; it keeps weights, and its caller the KV memory."""

    def __init__(self, shape: RecurrentShape, get: Get, target: CpuModel, max_length: int) -> None:
        form = shape.format
        build = CpuBuilder(shape, get, target.precision, None, False)
        self.shape, self.format, self.target = shape, form, target
        self.fuse = None if form.fuse is None else build.linear(form.fuse)
        self.join = None if form.join is None else build.linear(form.join)
        self.token_norm = build.norm(form.token_norm) if form.token_norm else None
        self.hidden_norm = build.norm(form.hidden_norm) if form.hidden_norm else None
        self.final_norm = build.norm(form.final_norm) if form.final_norm else None
        self.layer = CpuLayer(build, form.layer, 0)
        self.words = DraftWords(shape, get, target, build)
        self.rotations = rotation_table(shape.rope, shape.head_dim, max_length)

    def hidden(self, states: Tensor) -> Tensor:
        """What is handed on from token to token, of the model's hidden states."""
        return states if self.fuse is None else self.fuse(states)

    def forward(self, hidden: Tensor, inputs: BatchInputs, kv: PagedKV) -> Tensor:
        """The hidden state for each token, of those of the tokens before; `inputs.ids` are the tokens behind these."""
        ids, positions, slots = (torch.from_numpy(values) for values in inputs[:3])
        tokens = self.words.embed(ids)
        if self.token_norm is not None:
            tokens = self.token_norm(tokens)
        normed = hidden if self.hidden_norm is None else self.hidden_norm(hidden)
        attention = cast(AnyAttention, inputs.attention)  # `step_attention` has made it
        pair = torch.cat([tokens, normed] if self.format.token_first else [normed, tokens], -1)
        rotations = self.rotations[positions][:, None]
        if self.join is None:
            x = normed.clone() if self.shape.hidden_norm_stays else hidden.clone()
            self.layer(x, rotations, slots, kv, attention, pair)
        else:
            x = self.join(pair)
            self.layer(x, rotations, slots, kv, attention)
        return self._normed(x) if self.format.normed_back else x

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary of the model] of what `forward` has made; -inf of words that are never drafted."""
        return self.words.logits(hidden if self.format.normed_back else self._normed(hidden))

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.final_norm is None else self.final_norm(x)


class RecurrentProposer(EntriesProposer):
    """The proposer of `--speculative-config '{"method": "eagle3", …}'` and of the others that draft so."""

    def __init__(self, head: RecurrentHead, kv: PagedKV, rows: int) -> None:
        super().__init__(head.target, head.shape.states, rows)
        self.head, self.kv = head, kv
        self._hidden = torch.zeros(rows, head.shape.hidden_size, dtype=head.target.dtype)

    def make_entries(self, batch: tuple[Ints, Ints, Ints], tables: BlockTables, tokens: Tokens, states: Tensor) -> None:
        """See EntriesProposer."""
        rows, counts, _ = batch
        hidden = self._step(tables, batch, tokens, self.head.hidden(states))
        index = torch.from_numpy(rows)
        self._hidden[index] = hidden if len(hidden) == len(rows) else hidden[torch.from_numpy(np.cumsum(counts) - 1)]

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer."""
        drafted, known = self.begin(work, tokens), work.starts + work.pending
        drawing = np.flatnonzero(drafted)
        hidden = self._hidden[torch.from_numpy(work.rows[drawing])]
        for number in range(int(drafted.max(initial=0))):
            going = drafted[drawing] > number
            if not going.all():
                drawing, hidden = drawing[going], hidden[torch.from_numpy(going)]
            rows, positions = work.rows[drawing], known[drawing] + number
            if number:
                batch = (rows, np.ones_like(rows), positions - 2)
                hidden = self._step(work.tables, batch, tokens, hidden)
            parameters: Parameters = work.sampling.of(rows)._replace(position=positions)
            tokens[rows, positions] = sample(self.head.logits(hidden), parameters)
        share_drafts(self.head.target.group, work, drafted, tokens)
        return drafted

    def _step(self, tables: BlockTables, batch: tuple[Ints, Ints, Ints], tokens: Tokens, hidden: Tensor) -> Tensor:
        """One pass; `batch` as in row_positions, `hidden` of these positions."""
        owners, positions = row_positions(*batch)
        ids = tokens[owners, positions + 1].astype(np.int64)
        inputs = prepare_inputs(step_attention, self.kv, tables, *batch, ids)
        return self.head.forward(hidden, inputs, self.kv)
