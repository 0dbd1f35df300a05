"""The cache that a model is given: keys and values go to who computes the forward pass, states stay for its length.

It is a transformers' Cache with layers of the kinds that the model would have made itself, so that models find all
that they ask of one. A layer of attention has no memory of its own here, whatever it keeps of tokens; one of
convolutions or linear attention keeps transformers' own class, whose states are those of rows (row_states.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicIndexedLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionCacheLayerMixin,
)

from ..hooks import Unfit
from .layers import (
    CARRIERS,
    KeysValues,
    PagedCompressedLayer,
    PagedHybridLayer,
    PagedIndexedLayer,
    PagedLayer,
    PagedWindowLayer,
)
from .own_states import cache_class, own_layers

Maker = Callable[[KeysValues, int], Any]


class Caches:
    """Makes caches for one model."""

    def __init__(self, config: PreTrainedConfig) -> None:
        layers = own_layers(config) or _made_layers(config)
        self.join = cache_class(config)
        compressing = any(map(_compresses, layers))
        self.makers = [_compressing_maker(layer) if compressing else _maker(layer) for layer in layers]
        # where layers are given no other keys
        self.windows = {index: layer.sliding_window for index, layer in enumerate(layers)} if compressing else {}

    def make(self, whose: KeysValues) -> Cache:
        """A cache for one forward pass, or for all if there are no states."""
        if not self.makers:
            return _Growing(whose)
        return self.join([maker(whose, index) for index, maker in enumerate(self.makers)])


class _Growing(Cache):
    """For a model that does not say how many layers it has: as many as are used."""

    def __init__(self, whose: KeysValues) -> None:
        super().__init__(layer_class_to_replicate=PagedLayer)
        self.whose = whose

    def update(self, key_states: Tensor, value_states: Tensor, layer_idx: int, *args: Any, **kwargs: Any) -> Any:
        while len(self.layers) <= layer_idx:
            self.layers.append(PagedLayer(self.whose, len(self.layers)))
        layer: Any = self.layers[layer_idx]
        return layer.update(key_states, value_states)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        return self.whose.past

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.whose.past + int(query_length), 0


def _made_layers(config: PreTrainedConfig) -> list[Any]:
    """Those that transformers would make."""
    try:
        return list(DynamicCache(config=config).layers)
    except (AttributeError, KeyError, TypeError):  # it has no number of layers under a known name
        return []


def _maker(layer: Any) -> Maker:
    if type(layer) is DynamicIndexedLayer:
        return PagedIndexedLayer
    attends = isinstance(layer, CacheLayerMixin)
    if isinstance(layer, LinearAttentionCacheLayerMixin):
        count = len(layer.has_previous_state) if isinstance(layer.has_previous_state, dict) else 1
        if attends:
            return lambda whose, index: PagedHybridLayer(whose, index, count)
        kind = type(layer)
        return lambda whose, index: kind(number_of_states=count)
    if type(layer).__module__ != Cache.__module__:
        raise Unfit(f"keeps a cache of its own ({type(layer).__name__})")
    return PagedLayer if attends else lambda whose, index: type(layer)()


def _compresses(layer: Any) -> bool:
    """Is it one of DeepSeek V4?"""
    return hasattr(layer, "store_compression_weights")


def _compressing_maker(layer: Any) -> Maker:
    """Of a model that has such layers; all of its layers have one mask."""
    if _compresses(layer):
        return _compressed(layer)
    if not isinstance(layer, DynamicSlidingWindowLayer):
        raise Unfit("compresses tokens beside layers that see all of them")
    window = layer.sliding_window
    return lambda whose, index: PagedWindowLayer(whose, index, window)


def _compressed(layer: Any) -> Maker:
    window, size, overlapping = layer.sliding_window, layer.compress_rate, hasattr(layer, "overlap_kv")
    if size % CARRIERS:
        raise Unfit(f"compresses groups of {size} tokens, which is no multiple of {CARRIERS}")
    return lambda whose, index: PagedCompressedLayer(whose, index, window, size, overlapping)
