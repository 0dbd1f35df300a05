"""KV memory in several block tables: the layers that see everything in one, those that see a window in others.

All tables take their blocks from one memory, `[layers of a table, 2, kv_heads, slots, head_dim]`; a block is so many
tokens of one table's layers (model/memory/windows.py). Towards a model this is PagedKV and StepAttention: what it
writes and how it attends goes to the table of the layer. `slots` of a step are [tables, tokens].

Where blocks are packed, a table sees each as many as its layers' heads have rows in it: of the memory's block b the
first is `strides[table] * b`, and a head's rows begin with the head's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from actorserve.kernels.cpu.aligned import AlignedAttention, AnyAttention
from actorserve.kernels.cpu.attention import StepAttention
from actorserve.kernels.cpu.native.library import Library
from actorserve.kernels.cpu.paged_kv import PagedKV, Span
from actorserve.kernels.cpu.pool_memory import Pool, QuantisedPool

from ....model.memory.kv import KVSpec, KVType
from ....model.memory.windows import WindowPlan
from ...memory import make_packed_pools, make_pools


class TabledKV:
    """PagedKV of each table."""

    def __init__(
        self,
        spec: KVSpec,
        plan: WindowPlan,
        blocks: int,
        block_size: int,
        kind: KVType | torch.dtype,
        aligned: bool = False,
        model_dtype: torch.dtype | None = None,
        library: Library | None = None,
        narrow: bool = False,
    ) -> None:
        """`blocks` in all tables together; the others as of PagedKV, and `kind` is that of keys and values."""
        specs = plan.specs(spec)
        self.spec, self.block_size, self.aligned = spec, block_size, aligned
        self.table_of = plan.table_of(spec)
        self.strides = [1] * len(specs)
        if plan.packing is None:
            (memory,) = make_pools(specs[0], blocks, block_size, kind)
            assert not isinstance(memory, tuple), "keys and values have widths of their own"
            pools: list[Pool] = [_first(memory, len(table)) for table in plan.tables]
        else:
            pools = make_packed_pools(specs, plan.packing, blocks, block_size, kind)
            self.strides = [plan.packing.rows(*own.pools()) for own in specs]
        self.tables = [
            PagedKV(own, [pool], block_size, aligned, model_dtype, library, narrow)
            for own, pool in zip(specs, pools, strict=True)
        ]

    def write(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """As PagedKV."""
        table = self.table_of[layer]
        self.tables[table].write(layer, slots[table], keys, values)

    def write_joined(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """As PagedKV."""
        table = self.table_of[layer]
        self.tables[table].write_joined(layer, slots[table], keys_values)


def _first(memory: Tensor | QuantisedPool, layers: int) -> Tensor | QuantisedPool:
    return memory.part(layers) if isinstance(memory, QuantisedPool) else memory[:layers]


class TabledAttention:
    """StepAttention, or AlignedAttention, of each table."""

    def __init__(self, kv: TabledKV, spans: Sequence[Sequence[Span]]) -> None:
        """`spans` of each table: they differ in their blocks alone."""
        self.spans, self.table_of, self._tables = spans, kv.table_of, kv.tables
        self._make = AlignedAttention if kv.aligned else StepAttention

    @cached_property
    def parts(self) -> list[AnyAttention]:
        """Of each table. A model that computes rows in groups has none made for the whole step."""
        return [self._make(own, some, own.spec.layers) for own, some in zip(self._tables, self.spans, strict=True)]

    def advance(self) -> bool:
        """As StepAttention; of one that has not been advanced another is made."""
        return "parts" in self.__dict__ and all([part.advance() for part in self.parts])

    def __call__(self, layer: int, queries: Tensor, sinks: Tensor | None = None) -> Tensor:
        """As StepAttention."""
        return self.parts[self.table_of[layer]](layer, queries, sinks)


AnyKV = PagedKV | TabledKV
