"""Heads that draft token by token on a CPU: EAGLE-1 to -3 and multi-token prediction (model/heads/formats.py).

A head has KV memory of one layer for the same blocks as the model's. Its entry of position p is made of the model's
hidden state there and of the token at p + 1, so that it can be made as soon as that token stands: at the end of each
step, of all positions that the step computed and did not reject, prompts included. So it is there whenever the model's
own is: after a preemption or a death both are computed again, and a block that is found by its prefix holds both. Of
such a block the last entry may have been made of another next token, which costs accepted drafts, never right tokens.

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

from ...model.heads.formats import EMBEDDING, TO_TARGET, RecurrentShape
from ...options.config import ConfigError
from ..cpu.batch import BatchInputs, BlockTables, prepare_inputs, row_positions
from ..cpu.executor import CpuBuilder, CpuLayer, CpuModel, ResidualTaps, rotation_table, step_attention
from ..models.sharding import Get
from .verifier import Computed, DraftBatch, Ints, Tokens, read_states, share_drafts


class RecurrentHead:
    """What a head computes; it keeps weights, and its caller the KV memory."""

    def __init__(self, shape: RecurrentShape, get: Get, target: CpuModel, max_length: int) -> None:
        form = shape.format
        build = CpuBuilder(shape, get, target.dtype, None, False)
        self.shape, self.format, self.target = shape, form, target
        self.fuse = None if form.fuse is None else build.linear(form.fuse)
        self.join = None if form.join is None else build.linear(form.join)
        self.token_norm = build.norm(form.token_norm) if form.token_norm else None
        self.hidden_norm = build.norm(form.hidden_norm) if form.hidden_norm else None
        self.final_norm = build.norm(form.final_norm) if form.final_norm else None
        self.layer = CpuLayer(build, form.layer, 0)
        self.embeddings = get(f"{EMBEDDING}.weight").to(target.dtype) if shape.own_embeddings else None
        self.head = build.linear(shape.head) if shape.own_head else None
        self.words = target_words(shape, get) if shape.mapped else None
        self.rotations = rotation_table(shape.rope, shape.head_dim, max_length)

    def hidden(self, states: Tensor) -> Tensor:
        """What is handed on from token to token, of the model's hidden states."""
        return states if self.fuse is None else self.fuse(states)

    def forward(self, hidden: Tensor, inputs: BatchInputs, kv: PagedKV) -> Tensor:
        """The hidden state for each token, of those of the tokens before; `inputs.ids` are the tokens behind these."""
        ids, positions, slots = (torch.from_numpy(values) for values in inputs[:3])
        tokens = self.target.embed(ids) if self.embeddings is None else self.embeddings[ids]
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
        seen = hidden if self.format.normed_back else self._normed(hidden)
        if self.head is None:
            return self.target.logits_of_normed(seen)
        own: Tensor = self.head(seen).float()
        if self.words is None:
            return own
        return own.new_full((len(own), self.shape.vocab_size), float("-inf")).index_copy_(1, self.words, own)

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.final_norm is None else self.final_norm(x)


def target_words(shape: RecurrentShape, get: Get) -> Tensor:
    """Which word of the model each is that may be drafted."""
    words = torch.arange(shape.draft_vocabulary) + get(TO_TARGET).long()
    if len(words.unique()) != len(words) or int(words.min()) < 0 or int(words.max()) >= shape.vocab_size:
        raise ConfigError(f"model: {TO_TARGET} does not lead to different words of the model's {shape.vocab_size}")
    return words


class RecurrentProposer:
    """The proposer of `--speculative-config '{"method": "eagle3", …}'` and of the others that draft so."""

    def __init__(self, head: RecurrentHead, kv: PagedKV, rows: int) -> None:
        self.head, self.kv = head, kv
        self.reads = head.shape.states
        if self.reads.layers:
            head.target.taps = ResidualTaps(self.reads.layers)
        self._hidden = torch.zeros(rows, head.shape.hidden_size, dtype=head.target.dtype)
        self._known = np.zeros(rows, np.int64)  # tokens that `_hidden` has seen

    def place(self, row: int, computed: int) -> None:
        """A sequence takes a row; nothing is drafted before its first tokens are observed."""
        self._known[row] = 0

    def read(self, hidden: Tensor, index: Tensor | slice) -> Tensor:
        """See Observer."""
        return read_states(self.head.target, self.reads, hidden, index)

    def observe(self, computed: Computed, tokens: Tokens) -> None:
        """Make the entries of these positions, of whose tokens the next ones are known."""
        rows, counts, starts = computed.rows, computed.counts, computed.starts
        ends = starts + counts
        hidden = self._step(computed.tables, (rows, counts, starts), tokens, self.head.hidden(computed.states))
        index = torch.from_numpy(rows)
        self._hidden[index] = hidden if len(hidden) == len(rows) else hidden[torch.from_numpy(np.cumsum(counts) - 1)]
        self._known[rows] = ends + 1

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer."""
        known = work.starts + work.pending
        drafted = np.where(self._known[work.rows] == known, work.room, 0)
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
