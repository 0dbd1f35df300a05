"""Attention over paged KV memory with plain torch operations, for machines without a GPU.

One step's attention is prepared once (StepAttention) and called once a layer: for each kind of layers once, which
attend alike (kv.py:LayerAttention has the formula) over one pool (paged_kv.py).

Ways through it, as measured (one thread of a Zen 4, float32, µs for one row of decoding in one layer):
                                       8 + 4 heads of 32                 16 + 8 heads of 128
    rows x context                     8 x 256   32 x 256   32 x 1024    8 x 256   32 x 1024
    one run, in place                  21        25         83           302       1280
    blocks of 32, row gathered         30        43         173          241       1342
    blocks of 32, product a run        75        100        449          364       1890
    blocks of 32, batch gathered       23        33         232          417       2500
So a sequence in one run is read in place, any other is gathered, one at a time into memory that stays in the cache.
Decoding in float32 takes two products and a softmax for each sequence: numpy's where that is quicker (decode.py).
Chunks of prompts, and 16-bit types (5.7 against 9.0 ms for 32 rows of 100-300 at 16 + 8 heads of 128), go through
scaled_dot_product_attention, in tiles of 128 queries that skip what lies in the future (dense.py).

That is so without the kernels in C (native/attention.py), which take everything where they are to be had, but for
chunks of prompts in bfloat16: torch multiplies these by instructions of the processor (one thread of a Sapphire Rapids,
512 tokens behind 512 at 16 + 8 heads of 128, ms: in C 23 to 27 whatever the type, torch in float32 28, float16 32,
bfloat16 10), and so of models in float32 whose products are of bfloat16 (PagedKV's `narrow`).

Knows tensors only: no requests, no plans.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import LayerAttention

from .decode import Decoding, Row
from .dense import Context, attend
from .native.attention import NativeAttention
from .paged_kv import Kind, Layers, PagedKV, Span
from .pool_memory import PoolMemory

MANY_QUERIES = 16  # of a span of bfloat16, from which on torch is quicker


class _Where:
    """What one span sees in one kind of layers: keys and values of positions [start, span.position + span.size)."""

    def __init__(self, kind: Kind, span: Span, start: int, fresh: bool = False, narrow: bool = False) -> None:
        """`fresh`: what is gathered is good until this object ends, not only until the next is read. `narrow`: it is
        read in the pool's type."""
        self.span, self.start, self.pool = span, start, kind.pool
        widens = self.pool.widens and not narrow
        size = span.position + span.size - start
        first, offset = divmod(start, self.pool.block_size)
        self.index: Tensor | None = None
        if span.one_run and not widens:
            self.slots = slice(slot := int(span.blocks[first]) * self.pool.block_size + offset, slot + size)
            return
        count = -(-(offset + size) // self.pool.block_size)
        self.index = torch.from_numpy(span.blocks[first : first + count])
        self.target = self.exact = self.pool.fresh(count) if fresh else self.pool.scratch(count)
        if widens:
            self.exact = self.pool.fresh(count, exact=True) if fresh else self.pool.exact(count)
        keys, values = (part[:, offset : offset + size] for part in self.pool.of_tokens(self.exact))
        self.gathered = Context(start, keys, values)

    def read(self, layer: int) -> Context:
        """Of a layer of the pool."""
        if self.index is None:
            return Context(self.start, self.pool.keys[layer][:, self.slots], self.pool.values[layer][:, self.slots])
        self.pool.read(layer, self.index, self.target, self.exact)
        return self.gathered


def blocks_of(pool: PoolMemory, span: Span) -> int:
    """How many blocks hold a span and what is before it."""
    return -(-(span.position + span.size) // pool.block_size)


def contexts(
    kv: PagedKV, spans: Sequence[Span], layers: Layers, layer: int, start: int = 0
) -> list[tuple[Tensor, Tensor]]:
    """(keys [kv_heads, n, key_dim], values [kv_heads, n, value_dim]) of each span: all positions from `start` on, its
    own included."""
    kinds, places = kv.kinds(layers)
    place = places[layer]
    assert place is not None, f"layer {layer} attends to nothing"
    found = [_Where(kinds[place[0]], span, start, fresh=True).read(place[1]) for span in spans]
    dtype = kinds[place[0]].pool.model_dtype
    return [(context.keys.to(dtype), context.values.to(dtype)) for context in found]


def _row(kind: Kind, span: Span) -> Row:
    """A span of one token as numpy's products want it."""
    start, block = kind.rule.first_seen(span.position), kind.pool.block_size
    first, offset = divmod(start, block)
    size, room = span.position + 1 - start, kind.rule.steps_on(span.position)
    if span.one_run:
        return Row(span.first, size, int(span.blocks[first]) * block + offset, room=room)
    blocks = torch.from_numpy(span.blocks[first : blocks_of(kind.pool, span)])
    return Row(span.first, size, 0, blocks, offset, room)


class _Plan:
    """The spans of a step as one kind of layers sees them."""

    def __init__(self, kv: PagedKV, kind: Kind, spans: Sequence[Span]) -> None:
        self.kv, self.kind = kv, kind
        pool, rule = kind
        self.by_native: NativeAttention | None = None
        self.narrow = False  # what is left for torch is multiplied in the pool's type, which is not the model's
        if pool.native is not None and NativeAttention.takes(rule):
            some = [span for span in spans if not _is_for_torch(kv, kind, span)]
            spans = [span for span in spans if _is_for_torch(kv, kind, span)]
            self.by_native = NativeAttention(pool.native, rule, pool.block_size, some) if some else None
            self.narrow = pool.widens
        exact = pool.dtype == torch.float32 or pool.widens
        alone = [span for span in spans if exact and span.size == 1]
        others = [span for span in spans if not exact or span.size > 1]
        self.by_numpy: Decoding | None = None
        if alone and pool.numpy is not None:
            self.by_numpy = Decoding(pool.numpy, [_row(kind, span) for span in alone], rule)
            alone = []
        elif not _is_plain(rule):
            alone, others = [], [*others, *alone]
        gathered = (blocks_of(pool, span) for span in [*alone, *others] if not span.one_run or pool.widens)
        most = max(gathered, default=1)
        pool.scratch(most)  # once for all: views of it are kept
        if pool.widens and not self.narrow:
            pool.exact(most)
        self.decoding, self.chunks = (
            [_Where(kind, span, rule.first_seen(span.position), narrow=self.narrow) for span in some]
            for some in (alone, others)
        )

    def advance(self) -> bool:
        if self.chunks or self.decoding:
            return False
        parts = [part for part in (self.by_native, self.by_numpy) if part is not None]
        return all([part.advance() for part in parts])

    def attend(self, layer: int, queries: Tensor, sinks: Tensor | None) -> Tensor:
        """`layer` is one of the pool."""
        out = queries.new_empty(*queries.shape[:2], self.kind.pool.value_dim)
        if self.by_native is not None:
            self.by_native.attend(layer, queries, out, sinks)
            if not self.chunks:
                return out
        if self.kind.pool.widens and queries.dtype != torch.float32:
            return out.copy_(self._by_torch(layer, queries.float(), out.float(), sinks))
        return self._by_torch(layer, queries, out, sinks)

    def _by_torch(self, layer: int, queries: Tensor, out: Tensor, sinks: Tensor | None) -> Tensor:
        """The spans that are left."""
        if self.by_numpy is not None:
            self.by_numpy.attend(layer, queries, out, sinks)
        if self.decoding:
            self._decode(layer, queries, out)
        for where in self.chunks:
            own = slice(where.span.first, where.span.first + where.span.size)
            context, rows = where.read(layer), queries[own]
            if self.narrow:
                rows = rows.to(context.keys.dtype)
            made = torch.empty_like(out[own], dtype=rows.dtype) if self.narrow else out[own]
            attend(self.kind.rule, where.span.position, rows, context, made, self.kv.masks, sinks)
            if self.narrow:
                out[own] = made
        return out

    def _decode(self, layer: int, queries: Tensor, out: Tensor) -> None:
        """One query a sequence: the heads of a group are the rows of one product for each head of keys."""
        kv_heads = self.kind.pool.kv_heads
        scaled = (queries * self.kind.rule.scale).unflatten(1, (kv_heads, -1)).unbind(0)
        results = out.unflatten(1, (kv_heads, -1)).unbind(0)
        for where in self.decoding:
            row = where.span.first
            _, keys, values = where.read(layer)
            shares = torch.softmax(torch.bmm(scaled[row], keys.transpose(1, 2)), -1)
            torch.bmm(shares, values, out=results[row])


def _is_for_torch(kv: PagedKV, kind: Kind, span: Span) -> bool:
    """Whether torch computes a span sooner than the kernels in C."""
    pool, rule = kind
    multiplied = pool.dtype if kv.narrow else pool.model_dtype
    alike = pool.dtype == torch.bfloat16 == multiplied and pool.key_dim == pool.value_dim
    return alike and span.size >= MANY_QUERIES and _is_plain(rule)


def _is_plain(rule: LayerAttention) -> bool:
    """Whether scores are products with the scale, and nothing else."""
    return rule.soft_cap is None and rule.slopes is None and not rule.sinks


class StepAttention:
    """Attention of one step's spans; call it with each layer's queries when its keys and values are written."""

    def __init__(self, kv: PagedKV, spans: Sequence[Span], layers: Layers) -> None:
        """`layers` of the model; one step at a time may use the KV memory's scratch."""
        self.kv = kv
        self.spans = spans
        self.layers = layers
        kinds, self._places = kv.kinds(layers)
        self.plans = [_Plan(kv, kind, spans) for kind in kinds]

    def advance(self) -> bool:
        """The same spans, of one token each, a position further on. False: another object has to be made for them."""
        return all([plan.advance() for plan in self.plans])

    def __call__(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """The result [tokens, heads, value_dim], contiguous, for `queries` [tokens, heads, key_dim].

        `sinks` [heads], where the layer has them: one more score for each head, that takes a share and gives nothing.
        """
        place = self._places[layer]
        assert place is not None, f"layer {layer} attends to nothing"
        plan = self.plans[place[0]]
        assert plan.kind.rule.sinks == (sinks is not None), f"layer {layer}: sinks where it has none, or none"
        return plan.attend(place[1], queries, sinks)

    @property
    def of_all_layers(self) -> NativeAttention | None:
        """That of every layer by kernels in C, where all attend alike."""
        (plan, *others) = self.plans
        alike = not others and not plan.chunks and not plan.decoding and plan.by_numpy is None
        return plan.by_native if alike and not plan.kind.rule.sinks else None

    def native_of(self, layer: int) -> tuple[NativeAttention, int] | None:
        """That of a layer by kernels in C, where all of it is so, and the layer's place in its pool."""
        place = self._places[layer]
        if place is None:
            return None
        plan = self.plans[place[0]]
        own, others = plan.by_native, plan.chunks or plan.decoding or plan.by_numpy is not None
        plain = own is not None and not others and not plan.kind.rule.sinks and own.pool.joined
        return (own, place[1]) if own is not None and plain else None

    def contexts(self, layer: int) -> list[tuple[Tensor, Tensor]]:
        """What each span may see, all positions from 0 on; see `contexts`."""
        return contexts(self.kv, self.spans, self.layers, layer)

    def attend_gathered(
        self,
        layer: int,
        queries: Tensor,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        sinks: Tensor | None,
    ) -> Tensor:
        """The same attention over what a model has made of `contexts`: of each span keys [kv_heads, n, key_dim] and
        values [kv_heads, n, value_dim], with heads and widths of their own that go with those of `queries`."""
        rule = self.layers[layer]
        assert rule is not None, f"layer {layer} attends to nothing"
        out = queries.new_empty(*queries.shape[:2], values[0].shape[2])
        for span, own_keys, own_values in zip(self.spans, keys, values, strict=True):
            own = slice(span.first, span.first + span.size)
            context = Context(0, own_keys, own_values)
            attend(rule, span.position, queries[own], context, out[own], self.kv.masks, sinks)
        return out
