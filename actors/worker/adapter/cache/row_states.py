"""States of a step's rows as layers of a cache have them: gathered from where they are kept when a layer asks for them,
and put back when another layer does. So there is one layer's beside what is kept, whatever the number of layers.

A layer finds what it has stored before, which may be changed in place until another layer is asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

from torch import Tensor
from transformers.cache_utils import Cache

from ....model.memory.kv import StateSpec
from ...cpu.memory.states import Ints, RowStates


class PassStates:
    """Of one forward pass."""

    def __init__(self, states: RowStates, rows: Ints | Tensor, wanted: Iterable[tuple[int, str]]) -> None:
        self._states, self._rows = states, rows
        self._wanted = {*wanted}  # layer and name of what the pass is to make, and did not yet
        self._latest: list[LayerStates] = []  # of one layer

    def turn_to(self, one: LayerStates) -> None:
        """It is asked for, and those of other layers are put back."""
        if self._latest and self._latest[0].layer != one.layer:
            self._keep()
        if not any(other is one for other in self._latest):
            self._latest.append(one)

    def put_back(self) -> None:
        """The pass is over: what layers have is kept. RuntimeError if rows would go on with those of rows before."""
        self._keep()
        if self._wanted:
            names = ", ".join(f"{name} of layer {layer}" for layer, name in sorted(self._wanted))
            raise RuntimeError(f"rows that began have no states after their first pass: {names}")

    def _keep(self) -> None:
        for one in self._latest:
            for number, value in one.take():
                name = state_name(one.kind, number)
                self._states.put(one.layer, name, self._rows, value)
                self._wanted.discard((one.layer, name))
        self._latest.clear()

    def get(self, one: LayerStates, number: int) -> Tensor:
        return self._states.get(one.layer, state_name(one.kind, number), self._rows)


class LayerStates(dict[int, Tensor | None]):
    """Those of one kind that a layer has, by number, as transformers' layers keep them; None: there are none yet."""

    def __init__(self, whose: PassStates, layer: int, kind: str, numbers: Iterable[int], stored: Iterable[int]) -> None:
        super().__init__(dict.fromkeys(numbers))
        self.layer, self.kind = layer, kind
        self._whose, self._stored = whose, {*stored}

    def __getitem__(self, number: int) -> Tensor | None:
        self._whose.turn_to(self)
        value = super().__getitem__(number)
        if value is None and number in self._stored:
            value = self._whose.get(self, number)
            super().__setitem__(number, value)
        return value

    def __setitem__(self, number: int, value: Tensor | None) -> None:
        self._whose.turn_to(self)
        super().__setitem__(number, value)

    def take(self) -> list[tuple[int, Tensor]]:
        """What is here, and from now on is kept elsewhere."""
        found = [(number, value) for number, value in self.items() if value is not None]
        for number, _ in found:
            super().__setitem__(number, None)
            self._stored.add(number)
        return found


def state_name(kind: str, number: int) -> str:
    """How a state of a layer is called in a StateSpec."""
    return f"{kind}.{number}"


def give_states(
    cache: Cache, specs: Sequence[StateSpec], states: RowStates, rows: Ints | Tensor, fresh: bool
) -> PassStates:
    """Let the layers of a new cache have the states of rows; `fresh`: these have none yet, and get all in this pass."""
    whose = PassStates(states, rows, ((spec.layer, spec.name) for spec in specs) if fresh else ())
    for index, own in groupby(specs, lambda spec: spec.layer):
        layer: Any = cache.layers[index]
        found: dict[str, list[int]] = {"conv": [], "recurrent": []}
        for spec in () if fresh else own:
            kind, number = spec.name.split(".")
            found[kind].append(int(number))
            _begin(layer, kind, int(number), states.memory(spec.layer, spec.name))
        layer.conv_states = LayerStates(whose, index, "conv", layer.conv_states, found["conv"])
        layer.recurrent_states = LayerStates(whose, index, "recurrent", layer.recurrent_states, found["recurrent"])
    return whose


def _begin(layer: Any, kind: str, number: int, memory: Tensor) -> None:
    """As a layer is that has such a state."""
    getattr(layer, f"is_{kind}_states_initialized")[number] = True
    layer.has_previous_state[number] = True
    layer.device = memory.device
    if kind == "conv":
        layer.dtype = memory.dtype
        layer.conv_kernel_size[number] = memory.shape[-1]
