"""The caches that a decoder with cross attention is given: keys and values go to who computes a pass, or come from it.

A layer of cross attention makes keys and values of the encoder's answer where the pass has one (the prompt), and is
given those that were kept where it has none.
"""

from __future__ import annotations

from typing import Any, Protocol

from torch import Tensor
from transformers import EncoderDecoderCache
from transformers.cache_utils import Cache, CacheLayerMixin

from ..adapter.cache.layers import KeysValues, PagedLayer


class CrossKeysValues(KeysValues, Protocol):
    """Who computes a forward pass."""

    @property
    def read_length(self) -> int:
        """How many positions cross attention sees, of the one row; 1 where there are several."""

    def cross_update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of the encoder's answer; what the layer shall go on with."""

    def cross(self, layer: int) -> tuple[Tensor, Tensor]:
        """Those that were stored."""


class CrossLayer(CacheLayerMixin):
    """A layer of cross attention."""

    is_compileable = False

    def __init__(self, whose: CrossKeysValues, index: int) -> None:
        self.whose = whose
        self.index = index
        self.is_initialized = True

    def __getattribute__(self, name: str) -> Any:
        """Keys and values are asked for where the pass has no encoder's answer."""
        if name in ("keys", "values"):
            return self.whose.cross(self.index)[name == "values"]
        return super().__getattribute__(name)

    def lazy_initialization(self, *given: Any) -> None:
        """There is nothing to make."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.whose.cross_update(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return int(query_length), 0

    def get_seq_length(self) -> int:
        return 0

    def get_max_length(self) -> int:
        return -1


def make_caches(whose: CrossKeysValues, layers: int, known: bool) -> EncoderDecoderCache:
    """For one pass of a decoder of so many layers; `known`: keys and values of cross attention are there."""
    own = Cache(layers=[PagedLayer(whose, index) for index in range(layers)])
    cross = Cache(layers=[CrossLayer(whose, index) for index in range(layers)])
    made = EncoderDecoderCache(own, cross)
    made.is_updated = dict.fromkeys(range(layers), known)
    return made
