"""Attention over paged KV memory by attention.c, which has the formula, and keys and values written by kv_store.c."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from actorserve.actors.model.memory.kv import LayerAttention

from .library import Library

NUMBERS = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  # enum number
KEPT = ("float32", "float16", "bfloat16", "int8", "fp8", "nvfp4", "turbo4", "turbo3")  # in its order
MOST_DIM = 1024
MOST_GROUP = 128  # heads of queries that share one of keys


def _structure(name: str, **kinds: str) -> type[ctypes.Structure]:
    """Fields by what they are, in this order."""
    types = {"pointers": ctypes.c_void_p, "sizes": ctypes.c_int64, "floats": ctypes.c_float}
    fields = [(field, types[kind.rstrip("_")]) for kind, names in kinds.items() for field in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


_Rules = _structure(  # attention_rules
    "_Rules",
    sizes="heads kv_heads key_dim value_dim block_size key_number value_number query_number window chunk",
    floats="scale soft_cap",
    pointers="slopes",
    sizes_="key_stride value_stride scale_stride spans",
    pointers_="span",
)
_Layer = _structure(  # attention_layer
    "_Layer",
    pointers="rules keys values key_scales value_scales queries",
    sizes="query_stride",
    pointers_="out sinks memory",
    sizes_="threads",
)
_Rows = _structure(  # kv_rows
    "_Rows",
    sizes="tokens kv_heads dim kv_number source_number",
    pointers="source",
    sizes_="token_stride head_stride",
    pointers_="slots memory",
    sizes__="stride",
    pointers__="scales",
    sizes___="scale_stride",
)


class AnySpan(Protocol):
    """As paged_kv.py's Span."""

    @property
    def first(self) -> int: ...

    @property
    def size(self) -> int: ...

    @property
    def position(self) -> int: ...

    @property
    def blocks(self) -> np.ndarray: ...


class _Place(NamedTuple):
    """Addresses of one layer's keys and values, and of their scales."""

    keys: int
    values: int
    key_scales: int | None
    value_scales: int | None


class Kept(NamedTuple):
    """What keys, or values, are kept as, and how many numbers a head has."""

    name: str
    width: int

    @property
    def number(self) -> int:
        """As the kernels call it."""
        return KEPT.index(self.name)


class NativePool:
    """Where a pool's keys and values are, and how they get there."""

    def __init__(
        self,
        library: Library,
        keys: Sequence[Tensor],
        values: Sequence[Tensor],
        scales: Tensor | None,
        joined: bool,
        kept: tuple[Kept, Kept],
    ) -> None:
        """`keys` and `values` of each layer [kv_heads, slots, …], `scales` [layers, 2, kv_heads, slots]; `joined`:
        values lie behind the keys as if they were of further heads, `kept` as these."""
        self.library, self.scales, self.joined = library, scales, joined
        self.slots = keys[0].stride(0) // keys[0].stride(1)  # from head to head
        self.kept = kept
        pairs = [(None, None)] * len(keys) if scales is None else [(k.data_ptr(), v.data_ptr()) for k, v in scales]
        self.places = [_Place(k.data_ptr(), v.data_ptr(), *p) for k, v, p in zip(keys, values, pairs, strict=True)]
        of_places = [address for place in self.places for address in place]
        self.table = (ctypes.c_void_p * len(of_places))(*of_places)
        self.place_bytes = ctypes.sizeof(self.table) // len(self.places)  # of a layer in it
        self._store = library.function("kv_store", ctypes.c_void_p)
        self.rows = _Rows(scale_stride=self.slots)
        self._where = ctypes.addressof(self.rows)

    @staticmethod
    def takes(names: Sequence[str], *widths: int) -> bool:
        """Whether there are kernels for heads that are kept so."""
        return all(name in KEPT for name in names) and max(widths) <= MOST_DIM

    def store(self, layer: int, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """`keys` and `values` [tokens, kv_heads, width]."""
        keys_at, values_at, key_scales, value_scales = self.places[layer]
        self._write(slots, keys, keys_at, key_scales, self.kept[0])
        self._write(slots, values, values_at, value_scales, self.kept[1])

    def store_joined(self, layer: int, slots: Tensor, keys_values: Tensor) -> None:
        """`keys_values` [tokens, 2, kv_heads, width]."""
        if self.joined:
            place = self.places[layer]
            self._write(slots, keys_values.flatten(1, 2), place.keys, place.key_scales, self.kept[0])
            return
        self.store(layer, slots, *keys_values.unbind(1))

    def _write(self, slots: Tensor, source: Tensor, memory: int, scales: int | None, kept: Kept) -> None:
        rows = self.rows
        rows.kv_number = kept.number
        if source.stride(2) != 1:
            source = source.contiguous()
        rows.tokens, rows.kv_heads, rows.dim = source.shape
        rows.source_number, rows.source = NUMBERS[source.dtype], source.data_ptr()
        rows.token_stride, rows.head_stride = source.stride(0), source.stride(1)
        rows.slots, rows.memory, rows.scales = slots.data_ptr(), memory, scales
        rows.stride = self.slots * rows.dim
        self._store(self._where)


class Places(NamedTuple):
    """Addresses of an attention_layer, of kv_rows, and of layer_memory of each layer, for layers.c."""

    attention: int
    rows: int
    memory: int


class NativeAttention:
    """The attention of a step's spans as one kind of layers has it, over one pool."""

    def __init__(self, pool: NativePool, rule: LayerAttention, block_size: int, spans: Sequence[AnySpan]) -> None:
        self.pool, self.rule, self.library = pool, rule, pool.library
        self._blocks = [np.ascontiguousarray(span.blocks, np.int64) for span in spans]  # what else they hold may change
        self._spans = np.array(
            [
                (span.first, span.size, span.position, blocks.__array_interface__["data"][0])
                for span, blocks in zip(spans, self._blocks, strict=True)
            ],
            np.int64,
        )
        self._alone = all(span.size == 1 for span in spans)
        self._slopes = None if rule.slopes is None else torch.tensor(rule.slopes, dtype=torch.float32)
        self._rules = _Rules(
            heads=rule.heads,
            kv_heads=rule.kv_heads,
            key_dim=rule.key_dim,
            value_dim=rule.value_dim,
            block_size=block_size,
            key_number=pool.kept[0].number,
            value_number=pool.kept[1].number,
            window=rule.window or 0,
            chunk=rule.chunk or 0,
            scale=rule.scale,
            soft_cap=rule.soft_cap or 0.0,
            slopes=None if self._slopes is None else self._slopes.data_ptr(),
            key_stride=pool.slots * rule.key_dim,
            value_stride=pool.slots * rule.value_dim,
            scale_stride=pool.slots,
            spans=len(spans),
            span=self._spans.ctypes.data,
        )
        self._layer = _Layer(rules=ctypes.addressof(self._rules), threads=self.library.threads)
        self._where = ctypes.addressof(self._layer)
        self._run = self.library.function("attention_run", ctypes.c_void_p, ctypes.c_void_p)
        self._bytes = self.library.size("attention_bytes", ctypes.c_void_p, ctypes.c_int64)
        self._size = self._needed()

    @staticmethod
    def takes(rule: LayerAttention) -> bool:
        """Whether there are kernels for layers that attend so."""
        return rule.heads % rule.kv_heads == 0 and rule.heads // rule.kv_heads <= MOST_GROUP

    def _needed(self) -> int:
        return int(self._bytes(ctypes.addressof(self._rules), self.library.threads))

    @property
    def size(self) -> int:
        """Bytes that it needs."""
        return self._size

    def prepare(self, qkv: Tensor, out: Tensor, slots: Tensor, memory: int) -> Places:
        """For all layers of a step at once: of rows of q, k and v in float32 to rows of `out`."""
        own, rows, rule = self._layer, self.pool.rows, self.rule
        self._rules.query_number = rows.source_number = NUMBERS[torch.float32]
        own.queries, own.query_stride, own.out = qkv.data_ptr(), qkv.stride(0), out.data_ptr()
        own.sinks, own.memory = None, memory
        rows.kv_number = self.pool.kept[0].number
        rows.tokens, rows.kv_heads, rows.dim = 1, 2 * rule.kv_heads, rule.key_dim
        rows.token_stride, rows.head_stride = qkv.stride(0), rule.key_dim
        rows.slots, rows.stride = slots.data_ptr(), self.pool.slots * rule.key_dim
        return Places(self._where, ctypes.addressof(rows), ctypes.addressof(self.pool.table))

    def advance(self) -> bool:
        """The same spans, of one token each, a position further on; their tables hold the blocks by then. False, too,
        where a token goes to a block that does not follow the last one: whoever writes takes the next slot."""
        if not self._alone or self._jumps(self._spans[:, 2] + 1):
            return False
        self._spans[:, 2] += 1
        self._size = self._needed()
        return True

    def _jumps(self, positions: np.ndarray) -> bool:
        numbers, within = np.divmod(positions, self._rules.block_size)
        entered = [(self._blocks[span], int(numbers[span])) for span in np.flatnonzero(within == 0).tolist()]
        return any(blocks[number] != blocks[number - 1] + 1 for blocks, number in entered)

    def attend(self, layer: int, queries: Tensor, out: Tensor, sinks: Tensor | None) -> None:
        """`queries` [tokens, heads, key_dim]; `out` [tokens, heads, value_dim] is contiguous, and of the same type."""
        own, place = self._layer, self.pool.places[layer]
        if queries.stride(2) != 1 or queries.stride(1) != queries.shape[2]:
            queries = queries.contiguous()
        self._rules.query_number = NUMBERS[queries.dtype]
        own.keys, own.values, own.key_scales, own.value_scales = place
        own.queries, own.query_stride, own.out = queries.data_ptr(), queries.stride(0), out.data_ptr()
        if sinks is not None:
            sinks = sinks.float().contiguous()
            own.sinks = sinks.data_ptr()
        own.memory = self.library.scratch(self._size)
        self._run(self.library.pool, self._where)
