"""Heads that draft token by token on a CPU: EAGLE-1 to -3 and multi-token prediction (model/heads/formats.py).

A head has KV memory of one layer for the same blocks as the model's. Its entry of position p is made of the model's
hidden state there and of the token at p + 1, so that it can be made as soon as that token stands: at the end of each
step, of all positions that the step computed and did not reject, prompts included. So it is there whenever the model's
own is: after a preemption or a death both are computed again, and a block that is found by its prefix holds both. Of
such a block the last entry may have been made of another next token, which costs accepted drafts, never right tokens.

Rows that decode without drafts are not observed: a head costs nothing where drafts are off. Their last hidden states
are kept (KEPT_BYTES at most, MOST_KEPT of a row), and observed at once when the row has room for drafts again. Entries
of positions before these are not made any more, which costs accepted drafts, too.

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
from ..cpu.builder import CpuBuilder
from ..cpu.decoder_layer import CpuLayer, step_attention
from ..cpu.executor import CpuModel, ResidualTaps
from ..cpu.layers.rotation import rotation_table
from ..models.sharding import Get
from .verifier import Computed, DraftBatch, Ints, Tokens, read_states, share_drafts

KEPT_BYTES = 64 << 20  # of hidden states of all rows
MOST_KEPT = 256  # positions of a row


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
        self._kept = torch.empty(0)  # [rows, positions in a circle, numbers of a state], once there is one
        self._put_off = np.zeros(rows, np.bool_)  # decodes without drafts: what is computed now is not observed
        self._late = np.zeros(rows, np.int64)  # positions behind the last one that is observed

    def place(self, row: int, computed: int) -> None:
        """A sequence takes a row; nothing is drafted before its first tokens are observed."""
        self._known[row] = self._late[row] = 0

    def read(self, hidden: Tensor, index: Tensor | slice) -> Tensor:
        """See Observer."""
        return read_states(self.head.target, self.reads, hidden, index)

    def observe(self, computed: Computed, tokens: Tokens) -> None:
        """Make the entries of these positions, of whose tokens the next ones are known, but for rows that wait."""
        rows, starts, counts, tables, states = computed
        later = self._put_off[rows]
        if later.any():
            at = torch.from_numpy((np.cumsum(counts) - 1)[later])
            self._keep(rows[later], starts[later], states[at])
            if later.all():
                return
            states = states[torch.from_numpy(~np.repeat(later, counts))]
            rows, counts, starts = rows[~later], counts[~later], starts[~later]
        self._catch_up(rows, starts, tables, tokens)
        self._make_entries((rows, counts, starts), tables, tokens, states)

    def _keep(self, rows: Ints, positions: Ints, states: Tensor) -> None:
        """One state of each row, until the row has drafts again."""
        if not self._kept.numel():
            most = KEPT_BYTES // (len(self._late) * states.shape[1] * states.element_size())
            self._kept = states.new_empty(len(self._late), max(1, min(most, MOST_KEPT)), states.shape[1])
        self._kept[torch.from_numpy(rows), torch.from_numpy(positions % self._kept.shape[1])] = states
        self._late[rows] += 1

    def _catch_up(self, rows: Ints, ends: Ints, tables: BlockTables, tokens: Tokens) -> None:
        """Observe what was put off of these rows, which have computed the positions before `ends`."""
        late = self._late[rows] > 0
        if not late.any():
            return
        rows, ends = rows[late], ends[late]
        counts = np.minimum(self._late[rows], self._kept.shape[1])
        batch = (rows, counts, ends - counts)
        owners, positions = row_positions(*batch)
        states = self._kept[torch.from_numpy(owners), torch.from_numpy(positions % self._kept.shape[1])]
        self._make_entries(batch, tables, tokens, states)
        self._late[rows] = 0

    def _make_entries(
        self, batch: tuple[Ints, Ints, Ints], tables: BlockTables, tokens: Tokens, states: Tensor
    ) -> None:
        """Of these positions (see row_positions), of which the model has computed `states`."""
        rows, counts, starts = batch
        hidden = self._step(tables, batch, tokens, self.head.hidden(states))
        index = torch.from_numpy(rows)
        self._hidden[index] = hidden if len(hidden) == len(rows) else hidden[torch.from_numpy(np.cumsum(counts) - 1)]
        self._known[rows] = starts + counts + 1

    def propose(self, work: DraftBatch, tokens: Tokens) -> Ints:
        """See Proposer. What rows compute that decode without drafts is put off until they have some."""
        self._put_off[work.rows] = (work.room == 0) & (work.pending == 1)
        wanted = work.room > 0
        self._catch_up(work.rows[wanted], work.starts[wanted], work.tables, tokens)
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
