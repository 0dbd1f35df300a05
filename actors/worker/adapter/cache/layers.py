"""Layers of a cache that have no memory: what they are given goes to who computes a forward pass, and says what they go
on with.

DeepSeek V4's layers keep more than keys of a window. Groups of tokens are compressed into an entry each, and queries
see the entries of groups that have ended:
    entry e = Σ_j softmax(gate_j) ⊙ value_j, over tokens j of group e, and of group e - 1 where groups overlap
What is kept of each token are the numbers that entries are made of, and of each group its entry, spread over its last
CARRIERS tokens. So all of it stands at positions, in the block that the group ends in: whoever finds a prefix, or
computes tokens once more from anywhere on, finds what went before, and writes the same again.
"""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor
from transformers.cache_utils import CacheLayerMixin, LinearAttentionLayer

from ..hooks import Unfit

CARRIERS = 4  # a divisor of the tokens of a group, and of a block


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

    @property
    def past(self) -> int:
        """How many positions were computed before."""

    def keep(self, layer: int, name: str, new: Tensor, start: int = 0) -> Tensor:
        """Store what a layer keeps of the new tokens under this name, [1, tokens, width]; that of all of its row from
        the token `start` on."""

    def keep_groups(self, layer: int, name: str, new: Tensor, size: int) -> Tensor:
        """The same of groups of so many tokens, [1, groups, width], which end in this step; that of all that have."""


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
    """A layer whose queries see the tokens that an indexer chooses, by keys of its own; some ask how many there are."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        self.keys, self.values = super().update(key_states, value_states)
        return self.keys, self.values

    def get_seq_length(self) -> int:
        return self.whose.past if self.keys is None else self.keys.shape[-2]

    @property
    def indexer_position_ids(self) -> Tensor | None:
        """Of all tokens before, by time, height and width, for indexers that turn keys when they read them: there are
        texts alone, whose positions are their order. A pass's own are not to be kept."""
        past = self.whose.past
        return torch.arange(past).expand(3, 1, past) if past else None

    @indexer_position_ids.setter
    def indexer_position_ids(self, positions: Tensor) -> None:
        """They follow from how many there are."""

    def update_indexer(self, indexer_key_states: Tensor) -> Tensor:
        return as_keeper(self.whose).keep(self.index, "indexer", indexer_key_states)


class PagedWindowLayer(PagedLayer):
    """A layer of a model all of whose layers see keys of the same window: it is given no others."""

    def __init__(self, whose: KeysValues, index: int, window: int) -> None:
        super().__init__(whose, index)
        self.window = window

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        seen = min(self.whose.past, self.window - 1)
        return seen + int(query_length), self.whose.past - seen


class PagedCompressedLayer(PagedWindowLayer):
    """Such a layer that sees entries of groups, too: what transformers asks of its own for them."""

    def __init__(self, whose: KeysValues, index: int, window: int, size: int, overlapping: bool) -> None:
        super().__init__(whose, index, window)
        self.keeper = as_keeper(whose)
        self.size, self.overlapping = size, overlapping

    @property
    def known(self) -> int:
        """Of how many groups the entries stand."""
        return self.keeper.past // self.size

    @property
    def first(self) -> int:
        """The first group whose tokens are given: its entry stands where it is there for the next one's sake."""
        return max(0, self.known - self.overlapping)

    def store_compression_weights(self, name: str, kv: Tensor, gate: Tensor) -> tuple[Tensor, Tensor, int]:
        """Of new tokens; those of all groups that end in this step, and the position of the first."""
        ended = (self.keeper.past + kv.shape[1]) // self.size
        start = self.first * self.size
        both = self.keeper.keep(self.index, f"{name} tokens", torch.cat([kv, gate], -1), start)
        size = (ended - self.first) * self.size if ended > self.known else 0
        values, gates = both[:, :size].chunk(2, -1)
        return values, gates, start

    def update_overlap_state(self, *given: Any) -> tuple[None, None]:
        """The group before is given with those that end."""
        return None, None

    def update_compressor_states(self, name: str, compressed: Tensor) -> Tensor:
        """Entries of the groups that were given; all that there are."""
        new = compressed[:, self.known - self.first :]
        return self.keeper.keep_groups(self.index, f"{name} entries", new, self.size)


def as_keeper(whose: KeysValues) -> Keeper:
    """Unfit where it is none."""
    if not isinstance(whose, Keeper):
        raise Unfit("keeps more of tokens than keys and values")
    return whose


class PagedHybridLayer(LinearAttentionLayer, PagedLayer):  # type: ignore[override]
    """A layer of attention that has states beside it."""

    is_compileable = False

    def __init__(self, whose: KeysValues, index: int, number_of_states: int) -> None:
        PagedLayer.__init__(self, whose, index)
        LinearAttentionLayer.__init__(self, number_of_states=number_of_states)

    def lazy_initialization(self, *args: Any, **kwargs: Any) -> None:
        LinearAttentionLayer.lazy_initialization(self, *args, **kwargs)
