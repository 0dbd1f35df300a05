"""What a model keeps of each token and of each sequence, and how its layers attend: data, with the memory it takes.

An architecture that is described says it itself, any other is asked by trial (see who makes a KVSpec). Loader, checks,
memory estimates, both devices' memory and attention read it; so that what a layer needs stands once. Knows no torch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import msgspec


class LayerAttention(msgspec.Struct, frozen=True, kw_only=True):
    """One layer's attention. For a query q of head h at position p and a key k_j at position j,

        score = scale · q · k_j,  with a soft cap cap · tanh(score / cap),  with slopes + slopes[h] · (j - p)
    over j ≤ p, of a window also j > p - window, of chunks also j // chunk = p // chunk. With sinks the softmax has one
    score more for each head, a weight of the layer, that takes a share and gives nothing.
    """

    heads: int  # of queries
    kv_heads: int
    key_dim: int  # numbers of a head of queries and of keys
    value_dim: int
    scale: float
    window: int | None = None
    chunk: int | None = None
    soft_cap: float | None = None
    slopes: tuple[float, ...] | None = None  # by head of queries
    sinks: bool = False
    values_in_keys: bool = False  # the first `value_dim` numbers of a key are its value, and are kept once
    beside: int = 0  # so many numbers behind those of a key that are scored: by them tokens are chosen
    source: int | None = None  # the layer whose keys and values it reads; None: its own

    def alike(self) -> LayerAttention:
        """What layers that attend in the same way have in common: all but whose keys and values they read."""
        return self if self.source is None else msgspec.structs.replace(self, source=None)

    def first_seen(self, position: int) -> int:
        """The first position that a query at this one sees."""
        first = 0 if self.window is None else max(0, position - self.window + 1)
        return first if self.chunk is None else max(first, position // self.chunk * self.chunk)

    def steps_on(self, position: int) -> float:
        """So many positions further on a query still sees the same first one."""
        room = math.inf if self.window is None else self.window - 1 - position + self.first_seen(position)
        return room if self.chunk is None else min(room, self.chunk - 1 - position % self.chunk)


class StateSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What a layer keeps of a sequence as a whole, whatever its length: of a convolution, of linear attention."""

    layer: int
    name: str
    shape: tuple[int, ...]
    dtype: str | None = None  # as torch names it; None: the model's


class KVFormat(NamedTuple):
    """How a head's keys, or its values, are kept (kernels/cpu/kv_formats.py): bytes of GROUP numbers, and of the scale
    that each token has beside them."""

    name: str
    group_bytes: int
    scale_bytes: int = 0

    def bytes_of(self, width: int) -> int:
        """Of a head of so many numbers, its scale apart."""
        return width * self.group_bytes // GROUP

    def takes(self, width: int) -> bool:
        """Whether heads may be as wide."""
        return self.group_bytes % GROUP == 0 or width % GROUP == 0


class KVType(NamedTuple):
    """How keys and values are kept."""

    name: str  # of --kv-cache-dtype
    keys: KVFormat
    values: KVFormat

    @classmethod
    def of_floats(cls, itemsize: int) -> KVType:
        """Both as floats of so many bytes."""
        kept = KVFormat(f"{8 * itemsize} bits", GROUP * itemsize)
        return cls(kept.name, kept, kept)


GROUP = 16
_FORMATS = {
    "float32": KVFormat("float32", 64),
    "float16": KVFormat("float16", 32),
    "bfloat16": KVFormat("bfloat16", 32),
    "int8": KVFormat("int8", 16, 4),
    "fp8": KVFormat("fp8", 16, 4),
    "nvfp4": KVFormat("nvfp4", 9, 4),
    "turbo4": KVFormat("turbo4", 8, 4),
    "turbo3": KVFormat("turbo3", 6, 4),
}
_TURBOQUANT = {
    "turboquant_k8v4": ("fp8", "turbo4"),
    "turboquant_4bit_nc": ("turbo4", "turbo4"),
    "turboquant_k3v4_nc": ("turbo3", "turbo4"),
    "turboquant_3bit_nc": ("turbo3", "turbo3"),
}
GPU_KV_TYPES = ("auto", "float32", "float16", "bfloat16", "fp8")
KV_TYPES = {  # on a CPU
    **{name: KVType(name, kept, kept) for name, kept in _FORMATS.items() if not name.startswith("turbo")},
    **{name: KVType(name, _FORMATS[keys], _FORMATS[values]) for name, (keys, values) in _TURBOQUANT.items()},
}


class PoolSpec(NamedTuple):
    """Layers whose keys and values have one shape, and lie in one pool."""

    kv_heads: int
    key_dim: int
    value_dim: int
    layers: tuple[int, ...]
    values_in_keys: bool = False
    beside: int = 0

    def row_bytes(self, kind: KVType) -> list[int]:
        """Of a head of a token in each memory that the pool has: keys and values, which are one where their rows are
        as long, and scales. The same memory has those of keys and of values, one after the other."""
        keys, values = kind.keys.bytes_of(self.key_dim), kind.values.bytes_of(self.value_dim)
        if self.values_in_keys:
            return [keys]
        rows = [keys] if self.one_memory(kind) else [keys, values]
        return [*rows, kind.keys.scale_bytes] if kind.keys.scale_bytes else rows

    def one_memory(self, kind: KVType) -> bool:
        """Whether a key and a value are kept alike."""
        return self.values_in_keys or (self.key_dim == self.value_dim and kind.keys == kind.values)

    def token_bytes(self, kind: KVType) -> int:
        """Of a token, in all of these layers."""
        keys = kind.keys.bytes_of(self.key_dim) + kind.keys.scale_bytes
        values = 0 if self.values_in_keys else kind.values.bytes_of(self.value_dim) + kind.values.scale_bytes
        return len(self.layers) * self.kv_heads * (keys + values)


class KVSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model, or of the part of it that a member of a tensor-parallel group has."""

    layers: Sequence[LayerAttention | None]  # None: a layer that attends to nothing
    states: Sequence[StateSpec] = ()
    by_token: bool = False  # from states a row goes on by one token only, each a whole pass

    def pools(self) -> list[PoolSpec]:
        """By shape, in the order of the first layer of each."""
        found: dict[tuple[int, int, int, bool, int], list[int]] = {}
        for index, layer in enumerate(self.layers):
            if layer is not None and layer.source is None:
                shape = layer.kv_heads, layer.key_dim, layer.value_dim, layer.values_in_keys, layer.beside
                found.setdefault(shape, []).append(index)
        return [PoolSpec(*shape[:3], tuple(layers), *shape[3:]) for shape, layers in found.items()]

    def block_bytes(self, block_size: int, kind: KVType | int) -> int:
        """The size of a KV block in all layers; `kind` may be the bytes of a float."""
        kept = KVType.of_floats(kind) if isinstance(kind, int) else kind
        return block_size * sum(pool.token_bytes(kept) for pool in self.pools())

    def row_bytes(self, itemsizes: dict[str | None, int]) -> int:
        """The size of the states of one sequence; `itemsizes` by their types, None: the model's."""
        return sum(math.prod(state.shape) * itemsizes[state.dtype] for state in self.states)


def uniform(
    windows: Sequence[int | None],
    heads: int,
    kv_heads: int,
    head_dim: int,
    scale: float,
    soft_cap: float | None = None,
    sinks: bool = False,
) -> KVSpec:
    """Of a model whose layers differ in their windows alone."""
    widest = LayerAttention(
        heads=heads,
        kv_heads=kv_heads,
        key_dim=head_dim,
        value_dim=head_dim,
        scale=scale,
        soft_cap=soft_cap,
        sinks=sinks,
    )
    return KVSpec(layers=tuple(msgspec.structs.replace(widest, window=window) for window in windows))
