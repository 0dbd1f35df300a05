"""Multi-head latent attention on a CPU (model/layers.py: LatentSpec). Of a token a latent is kept, once for all heads.

A score of head h is q_plain · (k_up_h latent) + q_turned · k_turned, which can be had in two ways:
    absorbed   (k_up_hᵀ q_plain beside q_turned) · (latent beside k_turned), and of the sum of latents v_up_h makes the
               result: all heads attend over one key a token, as it is kept; nothing is made of what is kept
    expanded   keys and values of all heads are made of what is kept, and attended over as usual
The first costs more for each pair of a query and a key, the second something for each key: so decoding, and short
chunks far on in a text, take the first, other chunks the second. With `batch_invariant` all take the first, since a
token's bits would follow from the chunk that it is in otherwise.

`k_up` and `v_up` multiply queries and results, not latents, and are kept in the model's own type.

Where queries see some tokens alone (indexer.py), those behind so many are absorbed, each over the latents that were
chosen for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from actorserve.actors.model.memory.kv import LayerAttention
from actorserve.kernels.cpu.aligned import AlignedAttention
from actorserve.kernels.cpu.attention import StepAttention, contexts
from actorserve.kernels.cpu.dense import Context, attend
from actorserve.kernels.cpu.paged_kv import Masks, PagedKV, Span

from ....model.architecture import Architecture
from ....model.layers import LatentSpec, LinearSpec
from ....model.shapes import LatentShape
from ...models.sharding import Get
from ...quantization.base import CpuLinear
from ..batch_invariant import BatchInvariantLinear
from .elementwise import rotate, rotate_by_rows
from .indexer import Indexer

EXPANDED = 1 << 24  # numbers of keys and values that are made at once


class Norm(Protocol):
    """What this needs of one."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def in_place(self, x: Tensor) -> None: ...


class AdaptedUp(Protocol):
    """What adapters of a step change of `k_up` and `v_up` (lora/latents.py)."""

    def of(self, tokens: Tensor) -> AbstractContextManager[None]: ...

    def queries(self, made: Tensor, plain: Tensor, k_up: HeadProducts) -> None: ...

    def results(self, made: Tensor, seen: Tensor) -> None: ...

    def expanded(self, keys: Tensor, values: Tensor, latents: Tensor, own: slice) -> None: ...


class Builder(Protocol):
    """What makes parts of a checkpoint's tensors."""

    shape: Architecture
    get: Get
    dtype: torch.dtype
    batch_invariant: bool

    def norm(self, name: str, eps: float | None = None) -> Norm: ...

    def linear(self, *linears: LinearSpec, few_rows: bool = False) -> CpuLinear: ...

    def latent_up(self, linear: LinearSpec) -> AdaptedUp | None: ...


class HeadProducts:
    """x [tokens, heads, inputs] times a matrix for each head, [heads, inputs, outputs]."""

    def __init__(self, weights: Tensor, batch_invariant: bool) -> None:
        self.weights = weights
        self.fixed = [BatchInvariantLinear(own.t(), None) for own in weights] if batch_invariant else None

    def __call__(self, x: Tensor) -> Tensor:
        if self.fixed is not None:
            return torch.stack([linear(x[:, head].contiguous()) for head, linear in enumerate(self.fixed)], 1)
        return torch.bmm(x.transpose(0, 1), self.weights).transpose(0, 1)


class LatentStep:
    """The attention of one step: which of its spans are computed in which way."""

    def __init__(self, kv: PagedKV, spans: Sequence[Span], latent: LatentShape) -> None:
        self.kv, self.latent = kv, latent
        # spans that see some tokens alone, and which, as layers tell
        self.chosen: list[tuple[Span, Tensor | None]] = []
        self.room: int | None = None  # so many tokens later such a span begins; None: none does
        if latent.index is not None:
            parts = [_cut(span, latent.index.topk) for span in spans]
            spans = [dense for dense, _ in parts if dense is not None]
            self.chosen = [(behind, None) for _, behind in parts if behind is not None]
            self.room = min((latent.index.topk - span.position - span.size for span in spans), default=0)
        self.spans = [] if kv.aligned else [span for span in spans if self._is_expanded(span)]
        others = [span for span in spans if span not in self.spans] if self.spans else list(spans)
        self.rows: Tensor | None = None  # of the others' tokens; None: all
        if self.spans or self.chosen:
            self.rows = torch.cat([torch.arange(span.first, span.first + span.size) for span in others] or [NO_ROWS])
            others = _moved_up(others)
        self.absorbed: StepAttention | AlignedAttention | None = None
        if others:
            self.absorbed = (AlignedAttention if kv.aligned else StepAttention)(kv, others, kv.spec.layers)

    def advance(self) -> bool:
        """As StepAttention."""
        if self.spans or self.chosen or self.absorbed is None or self.room == 0:
            return False
        self.room = None if self.room is None else self.room - 1
        return self.absorbed.advance()

    def _is_expanded(self, span: Span) -> bool:
        """Where the multiplications of that way are fewer: for pairs of queries and keys, and by `k_up` and `v_up`."""
        sizes, keys = self.latent, span.position + span.size
        up = sizes.rank * (sizes.plain + sizes.value_dim)
        absorbed = span.size * (keys * (2 * sizes.rank + sizes.turning) + up)
        expanded = keys * (span.size * (sizes.plain + sizes.turning + sizes.value_dim) + up)
        return span.size > 1 and expanded < absorbed


NO_ROWS = torch.empty(0, dtype=torch.long)


def _cut(span: Span, topk: int) -> tuple[Span | None, Span | None]:
    """(the part whose queries see all tokens, which are no more than `topk`; that behind it)."""
    dense = min(max(topk - span.position, 0), span.size)
    behind = span._replace(first=span.first + dense, size=span.size - dense, position=span.position + dense)
    return (span._replace(size=dense) if dense else None), (behind if behind.size else None)


def _moved_up(spans: Sequence[Span]) -> list[Span]:
    """The same with their tokens one after the other."""
    found, first = [], 0
    for span in spans:
        found.append(span._replace(first=first))
        first += span.size
    return found


class LatentAttention:
    """That of one layer, from what q and the latent are made of to what heads have seen."""

    def __init__(self, build: Builder, spec: LatentSpec, index: int) -> None:
        """`spec` with the names of the checkpoint; `index` is the layer's place in the KV memory."""
        latent = build.shape.latent
        assert latent is not None
        self.sizes, self.index = latent, index
        self.heads, self.scale = build.shape.heads, build.shape.attention_scale
        self.rotate = rotate_by_rows if build.batch_invariant else rotate
        *down, last = spec.products()
        self.q_up = None if spec.q_up is None else build.linear(*last)
        self.down = [build.linear(*product) for product in (down if self.q_up else [*down, last])]
        self.q_norm = None if spec.q_norm is None else build.norm(spec.q_norm, latent.norm_eps)
        self.kv_norm = build.norm(spec.kv_norm, latent.norm_eps)
        up = build.get(f"{spec.kv_up.name}.weight").to(build.dtype).view(self.heads, -1, latent.rank)
        k_up, v_up = up.split([latent.plain, latent.value_dim], 1)
        self.k_up = HeadProducts(k_up.contiguous(), build.batch_invariant)
        self.v_up = HeadProducts(v_up.transpose(1, 2).contiguous(), build.batch_invariant)
        self.adapted = build.latent_up(spec.kv_up)
        self.indexer: Indexer | None = None
        if spec.index is not None and latent.index is not None:
            self.indexer = Indexer(build, spec.index, latent.index, latent.turning, self.rotate)

    def __call__(
        self,
        seen: Tensor,
        rotations: Tensor,
        slots: Tensor,
        kv: PagedKV,
        step: LatentStep,
        growth: Tensor | None = None,
    ) -> Tensor:
        """What heads see, [tokens, heads · value_dim]; what is kept of the tokens goes to `slots`. `growth`: of
        queries, [tokens, 1, 1]."""
        sizes, tokens = self.sizes, len(seen)
        made = [linear(seen) for linear in self.down]
        entry = made[-1][:, -(sizes.rank + sizes.turning) :]
        q = made[0] if len(made) == 2 else made[0][:, : -(sizes.rank + sizes.turning)]
        latent = q
        if self.q_up is not None:
            latent = q if self.q_norm is None else self.q_norm(q)
            q = self.q_up(latent)
        heads, entry = q.unflatten(1, (self.heads, -1)), entry.unflatten(1, (1, -1))
        self.kv_norm.in_place(entry[..., : sizes.rank])
        self.rotate(entry[..., sizes.rank :], rotations)
        self.rotate(heads[..., sizes.plain :], rotations)
        if growth is not None:
            heads.mul_(growth)
        entry = entry if sizes.index is None else self._with_key(entry, seen, rotations, sizes.index.dim)
        kv.write(self.index, slots, entry, entry[..., : sizes.rank])
        out = seen.new_empty(tokens, self.heads, sizes.value_dim)
        if step.absorbed is not None:
            if step.rows is None:
                return self._absorbed(step.absorbed, heads).reshape(tokens, -1)
            with self._of(step.rows):
                out[step.rows] = self._absorbed(step.absorbed, heads[step.rows])
        for span in step.spans:
            own = slice(span.first, span.first + span.size)
            with self._of(torch.arange(own.start, own.stop)):
                self._expanded(kv, span, heads[own], out[own])
        for number, (span, before) in enumerate(step.chosen):
            own = slice(span.first, span.first + span.size)
            ((kept, _),) = contexts(kv, [span], kv.spec.layers, self.index)
            found = self._choose(span, kept[0], seen[own], latent[own], rotations[own]) if self.indexer else before
            assert found is not None, "the first layer chooses"
            step.chosen[number] = span, found
            with self._of(torch.arange(own.start, own.stop)):
                self._over_chosen(found, kept[0], heads[own], out[own])
        return out.view(tokens, -1)

    def _choose(self, span: Span, kept: Tensor, seen: Tensor, latent: Tensor, rotations: Tensor) -> Tensor:
        """Which tokens each query of a span sees, by what is kept behind latents."""
        assert self.indexer is not None
        keys = kept[:, self.sizes.rank + self.sizes.turning :]
        return self.indexer.choose(seen, latent, rotations, span.position, keys)

    def _with_key(self, entry: Tensor, seen: Tensor, rotations: Tensor, dim: int) -> Tensor:
        """What is kept of tokens, with what they are chosen by behind it; layers that do not choose keep nothing."""
        if self.indexer is None:
            return F.pad(entry, (0, dim))
        return torch.cat([entry, self.indexer.keys(seen, rotations)], -1)

    def _over_chosen(self, found: Tensor, kept: Tensor, heads: Tensor, out: Tensor) -> None:
        """Absorbed, each query over the latents that were chosen for it."""
        rank, width = self.sizes.rank, self.sizes.rank + self.sizes.turning
        queries = self._absorbing(heads)
        alone = self.k_up.fixed is not None
        count = 1 if alone else max(1, EXPANDED // (found.shape[1] * width))
        seen = heads.new_empty(len(heads), self.heads, rank)
        for first in range(0, len(heads), count):
            some = slice(first, first + count)
            rows = kept[:, :width][found[some]]
            scores = torch.bmm(queries[some], rows.transpose(1, 2)) * self.scale
            seen[some] = torch.bmm(scores.softmax(-1), rows[..., :rank])
        out.copy_(self._result(seen))

    def _of(self, tokens: Tensor) -> AbstractContextManager[None]:
        return nullcontext() if self.adapted is None else self.adapted.of(tokens)

    def _absorbed(self, attention: StepAttention | AlignedAttention, heads: Tensor) -> Tensor:
        queries = self._absorbing(heads)
        if self.sizes.index is not None:  # what is kept behind latents has no part in it
            queries = F.pad(queries, (0, self.sizes.index.dim))
        return self._result(attention(self.index, queries))

    def _absorbing(self, heads: Tensor) -> Tensor:
        plain, turned = heads.split([self.sizes.plain, self.sizes.turning], 2)
        made = self.k_up(plain)
        if self.adapted is not None:
            self.adapted.queries(made, plain, self.k_up)
        return torch.cat([made, turned], 2)

    def _result(self, seen: Tensor) -> Tensor:
        """What heads have seen, of sums of latents."""
        out = self.v_up(seen)
        if self.adapted is not None:
            self.adapted.results(out, seen)
        return out

    def _expanded(self, kv: PagedKV, span: Span, heads: Tensor, out: Tensor) -> None:
        """Values are filled up with zeros to the width of keys, which torch's own attention wants."""
        sizes, masks = self.sizes, kv.masks
        ((kept, _),) = contexts(kv, [span], kv.spec.layers, self.index)
        kept = kept[..., : sizes.rank + sizes.turning]
        latents, turned = kept.split([sizes.rank, sizes.turning], 2)  # [1, positions, …]
        length, width = kept.shape[1], max(sizes.plain + sizes.turning, sizes.value_dim)
        count = max(1, min(self.heads, EXPANDED // (2 * length * width)))
        keys = kept.new_empty(count, length, sizes.plain + sizes.turning)
        values = kept.new_zeros(count, length, width)
        seen = heads.new_empty(len(heads), count, width)
        for first in range(0, self.heads, count):
            own = slice(first, min(first + count, self.heads))
            number = own.stop - first
            latent = latents.expand(number, -1, -1)
            keys[:number, :, : sizes.plain] = torch.bmm(latent, self.k_up.weights[own].transpose(1, 2))
            keys[:number, :, sizes.plain :] = turned
            values[:number, :, : sizes.value_dim] = torch.bmm(latent, self.v_up.weights[own])
            if self.adapted is not None:
                parts = keys[:number, :, : sizes.plain], values[:number, :, : sizes.value_dim]
                self.adapted.expanded(*parts, latents[0], own)
            context = Context(0, keys[:number], values[:number])
            self._attend(span, heads[:, own], context, seen[:, :number], masks)
            out[:, own] = seen[:, :number, : sizes.value_dim]

    def _attend(self, span: Span, heads: Tensor, context: Context, out: Tensor, masks: Masks) -> None:
        count, _, width = context.keys.shape
        rule = LayerAttention(heads=count, kv_heads=count, key_dim=width, value_dim=width, scale=self.scale)
        attend(rule, span.position, heads, context, out, masks, None)
