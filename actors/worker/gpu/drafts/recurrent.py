"""Drafts that a head says token by token, on a GPU: EAGLE-1 to -3 and multi-token prediction; see
worker/speculative/recurrent.py, model/heads/formats.py.

The head's KV memory is for the same blocks as the model's. What it reads of the model, hidden states of all tokens of a
step, the forward pass leaves on the device. Behind the tokens of each step, one graph of the step's size makes the
entries of all its positions: by then it is known which token stands behind each. Entries of positions that do not count
are written again, as the model's are. What is made of the last position that counts is kept for each row; from it the
graph of drafts goes on before the next step in which the row has room, each time by one entry more.

All of it stays on the device, so that steps are started before it is known what counts. Entries are made in each step,
also while drafts are off: a layer more, for which the host does nothing. A row that was just taken has what another one
has left, until its first step ends: its drafts mean nothing then, which costs time alone.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from actorserve.kernels.triton.drafts import follow
from actorserve.kernels.triton.rms_norm import add_rms_norm, rms_norm
from actorserve.kernels.triton.rotary_kv import Pools, RotaryTables

from ....model.heads.formats import RecurrentShape
from ....model.layers import LayerSpec
from ...models.rope import cosines_and_sines
from ...models.sharding import Get
from ..executor import GpuBatch, GpuBuilder, GpuLayer, GpuModel, Hidden
from ..graphs import Graphs, StepSize
from ..layers.scratch import SplitScratch
from ..layers.taps import ResidualTaps
from .ahead import DraftMemory, StepwiseDraftingRunner
from .words import DraftWords


class HeadBuilder(GpuBuilder):
    """Makes the parts of a head."""

    shape: RecurrentShape

    def layer(self, index: int) -> LayerSpec:
        return self.shape.format.layer

    def gain(self, name: str | None) -> Tensor | None:
        return self.tensor(name) if name else None


class HeadLayer(GpuLayer):
    """Attention and MLP of a head; there need be no norm before q, k and v."""

    def _make_norms(self, build: GpuBuilder, spec: LayerSpec) -> None:
        assert isinstance(build, HeadBuilder) and spec.mlp_norm is not None
        self.attention_norm, self.mlp_gain = build.gain(spec.attention_norm), build.tensor(spec.mlp_norm)


class RecurrentHead:
    """What a head computes; it keeps weights, and its caller the KV memory."""

    def __init__(self, shape: RecurrentShape, get: Get, target: GpuModel, max_length: int) -> None:
        form, device = shape.format, target.device
        build = HeadBuilder(shape, get, target.dtype, device)
        self.shape, self.format, self.target = shape, form, target
        self.fuse = None if form.fuse is None else build.linear(form.fuse)
        self.join = None if form.join is None else build.linear(form.join)
        self.token_norm, self.hidden_norm = build.gain(form.token_norm), build.gain(form.hidden_norm)
        self.final_norm = build.gain(form.final_norm)
        self.layer = HeadLayer(build, 0)
        self.words = DraftWords(shape, get, target, build)
        cos, sin = cosines_and_sines(shape.rope, shape.head_dim, max_length)
        self.turns = RotaryTables(cos.to(device), sin.to(device))

    def read(self, hidden: Hidden, states: Tensor) -> None:
        """What it reads of the end of a forward pass, if that is all; else the model's taps keep it in `states`."""
        reads = self.shape.states
        if reads.normed:
            self.target.norm(Hidden(hidden.added, hidden.residual.clone()), states)
        elif not reads.layers:
            torch.add(hidden.added, hidden.residual, out=states)

    def hidden(self, states: Tensor) -> Tensor:
        """What is handed on from token to token, of what was read."""
        return states if self.fuse is None else self.fuse(states)

    def forward(self, hidden: Tensor, ids: Tensor, batch: GpuBatch, pools: Pools) -> Tensor:
        """The hidden state for each token, of those of the tokens before; `ids` are the tokens behind these."""
        tokens = self._normed(self.words.embed(ids), self.token_norm)
        normed = self._normed(hidden, self.hidden_norm)
        pair = torch.cat([tokens, normed] if self.format.token_first else [normed, tokens], -1)
        if self.join is None:
            x, seen = (normed if self.shape.hidden_norm_stays else hidden).clone(), pair
        else:
            x = self.join(pair)
            seen = self._normed(x, self.layer.attention_norm)
        added = self.layer(seen, x, self.turns, pools, batch)
        if self.format.normed_back and self.final_norm is not None:
            return add_rms_norm(added, x, self.final_norm, self.shape.norm_eps)
        return x.add_(added)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [rows, vocabulary of the model] of what `forward` has made; -inf of words that are never drafted."""
        return self.words.logits(hidden if self.format.normed_back else self._normed(hidden, self.final_norm))

    def _normed(self, x: Tensor, gain: Tensor | None) -> Tensor:
        return x if gain is None else rms_norm(x, gain, self.shape.norm_eps)


class RecurrentDraftingRunner(StepwiseDraftingRunner):
    """Rows have drafts of a head."""

    def __init__(self, *given: Any, head: RecurrentHead, **named: Any) -> None:
        super().__init__(*given, **named)
        sizes, model, reads = self.sizes, self.model, head.shape.states
        self.head = head
        self.entries = Graphs[int | StepSize](
            [*self.decoding.sizes, *self.mixed.sizes], self._make_entries, self.device
        )
        counts = {*self.decoding.sizes, *(size.decoding for size in self.mixed.sizes), sizes.rows}
        self.head_scratch = SplitScratch(head.shape, sizes.length, counts, self.device)

        def zeros(*shape: int, dtype: torch.dtype = model.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=self.device)

        self._states = zeros(sizes.listed_tokens, max(1, len(reads.layers)) * head.shape.target_hidden)  # of a step
        self._following = zeros(sizes.listed_tokens, dtype=torch.int64)  # tokens
        self._ends = zeros(sizes.listed, dtype=torch.int64)
        self._last = zeros(sizes.rows + 1, head.shape.hidden_size)  # of each row; behind all what is nobody's
        if reads.layers:
            model.taps = ResidualTaps(reads.layers, self._states)

    @property
    def draft_memory(self) -> DraftMemory:
        return DraftMemory(self.head.shape, self.model.dtype)

    def _forward(self, batch: GpuBatch) -> Hidden:
        hidden = super()._forward(batch)
        self.head.read(hidden, self._states[: len(hidden.added)])
        return hidden

    def _after(self, size: int | StepSize) -> None:
        self.entries.step(size)

    def _make_entries(self, size: int | StepSize) -> None:
        """Of all positions of a step of this size, which is on the buffers."""
        (pools,), at = self.draft_pools, self._at
        if isinstance(size, StepSize):
            rows, starts, tokens = at.rows[: size.rows + 1], at.starts[: size.rows + 2], size.tokens
            batch, longest = self._batch(size, self.head_scratch, pools.keys), tokens
        else:
            rows, starts, tokens, longest = at.drawing[:size], self._starts[: size + 1], size, 1
            batch = GpuBatch(self._inputs.part(size, size), size, None, self.head_scratch.of(size))
        ids, ends = self._following[:tokens], self._ends[: len(rows)]
        inputs = self._inputs.part(len(rows), tokens)
        follow(rows, starts, inputs, self.rows.state, self.drafts, ids, ends, longest)
        batch = batch._replace(inputs=batch.inputs.of(0))
        made = self.head.forward(self.head.hidden(self._states[:tokens]), ids, batch, pools)
        self._last.index_copy_(0, rows.where(rows >= 0, len(self._last) - 1), made.index_select(0, ends))

    def _draft(self, size: int) -> None:
        there = self._at.drafting[:size].clamp(min=0)
        hidden, first = self._last.index_select(0, there), self.rows.state.drawn.index_select(0, there)
        words = self._say(0, size, self.head.logits(hidden))
        for number in range(1, self.lookup.drafts):
            inputs = self._token_each(number, size, first + number - 1, words)
            batch = GpuBatch(inputs, size, None, self.head_scratch.of(size))
            hidden = self.head.forward(hidden, inputs.ids, batch, self.draft_pools[0])
            words = self._say(number, size, self.head.logits(hidden))

    def profile_steps(self) -> None:
        """Those of the head, too."""
        super().profile_steps()
        for size in self._profiled():
            self._make_entries(size)
        self._make_entries(self.decoding.sizes[-1])

    def _graphs(self) -> dict[str, Graphs[Any]]:
        return {**super()._graphs(), "what a head reads": self.entries}
