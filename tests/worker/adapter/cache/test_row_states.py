"""States of rows in the layers of a cache: of one layer at a time beside what is kept."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers.cache_utils import Cache, LinearAttentionLayer

from actorserve.actors.model.memory.kv import StateSpec
from actorserve.actors.worker.adapter.cache.row_states import LayerStates, give_states
from actorserve.actors.worker.cpu.memory.states import RowStates

SPECS = [
    StateSpec(layer=layer, name=name, shape=(2, width), dtype="float32")
    for layer in (0, 2)
    for name, width in (("conv.0", 3), ("recurrent.0", 5))
]
ROWS = np.array([2, 0])


def layers_of(states: RowStates, fresh: bool) -> tuple[Any, Any]:
    """(what a pass has, its cache)."""
    cache = Cache(layers=[LinearAttentionLayer() for _ in range(3)])
    return give_states(cache, SPECS, states, ROWS, fresh), cache


def held(cache: Any) -> list[int]:
    """Layers that have tensors."""
    found = []
    for index, layer in enumerate(cache.layers):
        kinds = layer.conv_states, layer.recurrent_states
        if any(value is not None for kind in kinds for value in kind.values()):
            found.append(index)
    return found


def test_one_layer_has_them_at_a_time() -> None:
    states = RowStates(SPECS, 3, 0, torch.float32)
    for spec in SPECS:
        states.memory(spec.layer, spec.name).copy_(torch.arange(3.0)[:, None, None].expand(3, *spec.shape))
    whose, cache = layers_of(states, fresh=False)
    assert not held(cache) and all(cache.has_previous_state(layer) for layer in (0, 2))
    assert cache.layers[1].conv_states == {0: None} and not isinstance(cache.layers[1].conv_states, LayerStates)
    cache.get_recurrent_state(0).add_(10)  # as kernels do
    assert cache.update_conv_state(torch.full((2, 2, 1), 7.0), 0)[:, 0].tolist() == [[2, 2, 2, 7], [0, 0, 0, 7]]
    assert held(cache) == [0] and float(states.memory(0, "recurrent.0").max()) == 2, "nothing is put back yet"
    assert cache.get_conv_state(2)[:, 0, 0].tolist() == [2, 0] and held(cache) == [2]
    assert states.memory(0, "recurrent.0")[:, 0, 0].tolist() == [10, 1, 12]
    assert states.memory(0, "conv.0")[:, 0].tolist() == [[0, 0, 7], [1, 1, 1], [2, 2, 7]]
    assert cache.get_recurrent_state(0)[:, 0, 0].tolist() == [12, 10], "who is asked again has what was stored"
    cache.update_recurrent_state(torch.full((2, 2, 5), 4.0), 2)
    whose.put_back()
    assert not held(cache) and states.memory(2, "recurrent.0")[:, 0, 0].tolist() == [4, 1, 4]


def test_rows_without_states_find_none() -> None:
    """Whatever their places hold; what they have made is found by whoever asks for it once more."""
    states = RowStates(SPECS, 3, 0, torch.float32)
    states.memory(2, "recurrent.0").fill_(9)
    whose, cache = layers_of(states, fresh=True)
    assert cache.get_recurrent_state(2) is None and not cache.has_previous_state(2)
    cache.update_conv_state(torch.ones(2, 2, 1), 2, conv_kernel_size=3)
    cache.update_recurrent_state(torch.full((2, 2, 5), 4.0), 2)
    cache.update_conv_state(torch.ones(2, 2, 1), 0, conv_kernel_size=3)
    cache.update_recurrent_state(torch.full((2, 2, 5), 6.0), 0)
    assert held(cache) == [0] and cache.get_recurrent_state(2)[0, 0].tolist() == [4.0] * 5
    whose.put_back()
    assert states.memory(2, "recurrent.0")[:, 0, 0].tolist() == [4, 9, 4]
    assert states.memory(0, "conv.0")[:, 0].tolist() == [[0, 0, 1], [0, 0, 0], [0, 0, 1]]
    assert states.memory(0, "recurrent.0")[:, 0, 0].tolist() == [6, 0, 6]


def test_rows_without_states_are_given_all() -> None:
    """Else they would go on with those of the rows before them."""
    for fresh in (True, False):
        whose, cache = layers_of(RowStates(SPECS, 3, 0, torch.float32), fresh)
        cache.update_conv_state(torch.ones(2, 2, 1), 2, conv_kernel_size=3)
        cache.update_recurrent_state(torch.full((2, 2, 5), 4.0), 2)
        cache.update_conv_state(torch.ones(2, 2, 1), 0, conv_kernel_size=3)
        if fresh:
            with pytest.raises(RuntimeError, match=r"first pass: recurrent\.0 of layer 0$"):
                whose.put_back()
        else:
            whose.put_back()
