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


class KVType(NamedTuple):
    """How keys and values are kept: bytes of a number, and of the scale that a token has for each head's keys, and for
    its values."""

    name: str  # of --kv-cache-dtype
    itemsize: int
    scale_bytes: int = 0


KV_TYPES = {  # on a CPU
    "float32": KVType("float32", 4),
    "float16": KVType("float16", 2),
    "bfloat16": KVType("bfloat16", 2),
    "int8": KVType("int8", 1, 4),
}


class PoolSpec(NamedTuple):
    """Layers whose keys and values have one shape, and lie in one pool."""

    kv_heads: int
    key_dim: int
    value_dim: int
    layers: tuple[int, ...]
    values_in_keys: bool = False

    @property
    def numbers(self) -> int:
        """Of a token, in all of these layers."""
        return len(self.layers) * self.kv_heads * (self.key_dim + (0 if self.values_in_keys else self.value_dim))

    @property
    def scales(self) -> int:
        """Of a token, where heads have scales."""
        return len(self.layers) * self.kv_heads * 2


class KVSpec(msgspec.Struct, frozen=True, kw_only=True):
    """Of one model, or of the part of it that a member of a tensor-parallel group has."""

    layers: Sequence[LayerAttention | None]  # None: a layer that attends to nothing
    states: Sequence[StateSpec] = ()

    def pools(self) -> list[PoolSpec]:
        """By shape, in the order of the first layer of each."""
        found: dict[tuple[int, int, int, bool], list[int]] = {}
        for index, layer in enumerate(self.layers):
            if layer is not None and layer.source is None:
                shape = layer.kv_heads, layer.key_dim, layer.value_dim, layer.values_in_keys
                found.setdefault(shape, []).append(index)
        return [PoolSpec(*shape[:3], tuple(layers), shape[3]) for shape, layers in found.items()]

    def block_bytes(self, block_size: int, itemsize: int, scale_bytes: int = 0) -> int:
        """The size of a KV block in all layers; `itemsize` and `scale_bytes` as of a KVType."""
        return block_size * sum(itemsize * pool.numbers + scale_bytes * pool.scales for pool in self.pools())

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
