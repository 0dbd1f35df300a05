"""The cache that a model is given: keys and values go to who computes the forward pass, states stay for its length.

It is a transformers' Cache with layers of the kinds that the model would have made itself, so that models find all
that they ask of one. A layer of attention has no memory of its own here, whatever it keeps of tokens; one of
convolutions or linear attention keeps transformers' own class, which is filled before a forward pass and read behind it
(states.py).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from torch import Tensor
from transformers import DynamicCache, PreTrainedConfig
from transformers.cache_utils import (
    Cache,
    CacheLayerMixin,
    DynamicIndexedLayer,
    LinearAttentionCacheLayerMixin,
    LinearAttentionLayer,
)

from ...model.memory.kv import StateSpec
from ..cpu.memory.states import StepStates
from .hooks import Unfit


class KeysValues(Protocol):
    """Who computes a forward pass."""

    @property
    def past(self) -> int:
        """How many positions were computed before, of the one row; 0 where positions are given with the tokens."""

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Store those of the new tokens; what the layer shall go on with."""


@runtime_checkable
class Keeper(Protocol):
    """Who has room for more of a token than keys and values."""

    def keep(self, layer: int, name: str, new: Tensor) -> Tensor:
        """Store what a layer keeps of the new tokens under this name, [1, tokens, width]; that of all of its row."""


class PagedLayer(CacheLayerMixin):
    """A layer of attention."""

    is_sliding = False
    is_compileable = False

    def __init__(self, whose: KeysValues, index: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.whose = whose
        self.index = index
        self.is_initialized = True

    def lazy_initialization(self, *given: Any) -> None:
        """There is nothing to make."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        return self.whose.update(self.index, key_states, value_states)

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        return self.whose.past + int(query_length), 0

    def get_seq_length(self) -> int:
        return self.whose.past

    def get_max_length(self) -> int:
        return -1


class PagedIndexedLayer(PagedLayer):
    """A layer whose queries see the tokens that an indexer chooses, by keys of its own."""

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        if not isinstance(self.whose, Keeper):
            raise Unfit("keeps keys of an indexer beside those of attention")
        return self.whose.keep(self.index, "indexer", indexer_key_states)


class PagedHybridLayer(LinearAttentionLayer, PagedLayer):  # type: ignore[override]
    """A layer of attention that has states beside it."""

    is_compileable = False

    def __init__(self, whose: KeysValues, index: int, number_of_states: int) -> None:
        PagedLayer.__init__(self, whose, index)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)


Maker = Callable[[KeysValues, int], Any]


class Caches:
    """Makes caches for one model."""

    def __init__(self, config: PreTrainedConfig) -> None:
        self.makers = [_maker(layer) for layer in _own_layers(config)]

    @property
    def stateful(self) -> bool:
        """Is there anything but keys and values?"""
        return any(maker not in (PagedLayer, PagedIndexedLayer) for maker in self.makers)

    def make(self, whose: KeysValues) -> Cache:
        """A cache for one forward pass, or for all if there are no states."""
        if not self.makers:
            return _Growing(whose)
        return Cache(layers=[maker(whose, index) for index, maker in enumerate(self.makers)])


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


def _own_layers(config: PreTrainedConfig) -> list[Any]:
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


def state_name(kind: str, number: int) -> str:
    """How a state of a layer is called in a StateSpec."""
    return f"{kind}.{number}"


def load_states(cache: Cache, specs: Sequence[StateSpec], states: StepStates) -> None:
    """Give the layers of a new cache the states of rows, none of which is fresh."""
    for spec in specs:
        layer: Any = cache.layers[spec.layer]
        kind, number = _split(spec.name)
        value = states.states.get(spec.layer, spec.name, states.rows)
        getattr(layer, f"{kind}_states")[number] = value
        getattr(layer, f"is_{kind}_states_initialized")[number] = True
        layer.has_previous_state[number] = True
        layer.device = value.device
        if kind == "conv":
            layer.dtype = value.dtype
            layer.conv_kernel_size[number] = value.shape[-1]


def store_states(cache: Cache, specs: Sequence[StateSpec], states: StepStates) -> None:
    """Keep what is in the layers behind a forward pass."""
    for spec in specs:
        kind, number = _split(spec.name)
        value = getattr(cache.layers[spec.layer], f"{kind}_states")[number]
        states.states.put(spec.layer, spec.name, states.rows, value)


def _split(name: str) -> tuple[str, int]:
    kind, number = name.split(".")
    return kind, int(number)
