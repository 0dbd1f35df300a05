"""How the linear layers of models that this server has layers of lie in it (cpu/builder.py)."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import cached_property

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.layers import HEAD, Axis, LinearSpec, MoeSpec
from ...model.lora.adapter import AdaptedLinear, AdapterError
from ..cpu.builder import arranged
from ..models.sharding import Cut, Get, Place, own_words
from ..models.tensors import qkv_order
from .build import Sites

LAYER = re.compile(r"(?:^|\.)layers\.(\d+)\.")


class NativeLayout:
    """See Layout."""

    adapts_experts = True

    def __init__(
        self,
        sites: Sites[object],
        whole: Architecture,
        own: Architecture,
        cut: Cut,
        place: Place,
        open_weights: Callable[[], Get],
    ) -> None:
        """`own` is the shape of this member's part, `cut` and `place` say which that is; `open_weights` of the whole
        model.
        """
        self._sites, self._whole, self._own, self._cut = sites, whole, own, cut
        self._place, self._open_weights = place, open_weights

    @cached_property
    def _linears(self) -> dict[str, LinearSpec]:
        there = {module for site in self._sites.linears for module in site.modules}
        layers = [self._whole.layer_at(index) for index in range(self._whole.layers)]
        first, behind = self._own.first_layer, self._own.first_layer + self._own.layers
        for layer in (*layers[:first], *layers[behind:]):  # of other stages, which look at them
            there.update(linear.name for linear in (*layer.linears(), *layer.exact()))
        if behind < self._whole.layers:
            there.add(HEAD)
        if self.adapts_experts:
            for moe in (layer.moe for layer in layers if layer.moe is not None):  # others of a group may have them
                there.update(linear.name for product in moe.products() for linear in product)
        each = (linear for layer in layers for linear in (*layer.linears(), *layer.exact()))
        found = {linear.name: linear for linear in each if linear.name in there}
        return found | ({HEAD: self._whole.head} if HEAD in there else {})

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """See Layout."""

        def size(axis: Axis) -> int:
            return self._whole.size(axis)

        return {name: (sum(map(size, one.rows)), size(one.columns)) for name, one in self._linears.items()}

    def apart(self, module: str, linear: AdaptedLinear) -> dict[str, AdaptedLinear]:
        """See Layout."""
        layer = LAYER.search(module)
        index = int(layer[1]) if layer else self._whole.layers
        moe = self._whole.layer_at(index).moe if index < self._whole.layers else None
        if moe is None or linear.experts != moe.experts:
            count = "no experts" if moe is None else f"{moe.experts} experts"
            raise AdapterError(
                f"{linear.a} is of {linear.experts} experts of rank {linear.rank}; the model has {count}"
            )
        return {one: part for expert in range(moe.experts) for one, part in self._of(moe, expert, linear)}

    def _of(self, moe: MoeSpec, expert: int, linear: AdaptedLinear) -> Iterator[tuple[str, AdaptedLinear]]:
        """One expert's: gate and up, or down, as the sizes say."""
        gate_up, down = moe.expert(expert)
        for linears in (gate_up, (down,)):
            rows = [self.sizes[one.name][0] for one in linears]
            if (sum(rows), self.sizes[linears[0].name][1]) != (linear.outputs, linear.inputs):
                continue
            alternate = moe.stacked is not None and moe.stacked.interleaved and len(linears) > 1
            for number, one in enumerate(linears):
                first = sum(rows[:number])
                own = slice(number, None, len(linears)) if alternate else slice(first, first + rows[number])
                yield one.name, linear._replace(expert=expert, rows=own, outputs=rows[number])
            return
        text = f"{linear.a} and {linear.b} are of weights [{linear.outputs}, {linear.inputs}]"
        raise AdapterError(f"{text}; experts of the model have none such")

    def own_rows(self, module: str, tensor: Tensor) -> Tensor:
        """See Layout."""
        if module == HEAD:
            return own_words(tensor, self._place)
        linear, parts, first = self._linears[module], [], 0
        if self._whole.grouped_qkv and len(linear.rows) > 1:
            tensor = tensor[qkv_order(self._whole)]
        for axis in linear.rows:
            rows, whole = self._cut(axis)
            parts.append(tensor[first + rows.start : first + rows.stop])
            first += whole
        return self.arranged(linear, torch.cat(parts))

    def arranged(self, linear: LinearSpec, rows: Tensor) -> Tensor:
        """A layer's own rows in the order in which they are computed."""
        return torch.cat(list(arranged(linear, rows, self._own)))

    def own_columns(self, module: str, tensor: Tensor) -> Tensor:
        """See Layout."""
        return tensor[:, self._cut(self._linears[module].columns)[0]]

    def weights(self) -> Callable[[str], Tensor]:
        """See Layout."""
        get = self._open_weights()

        def weight(module: str) -> Tensor:
            linear = self._linears[module]
            scales, stored = self._whole.row_scales(linear), get(f"{linear.name}.weight")
            return stored if scales is None else stored.float() * get(f"{linear.name}.{scales}").float()[:, None]

        return weight
