"""How the linear layers of models that this server has layers of lie in it (cpu/executor.py)."""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property

import torch
from torch import Tensor

from ...model.architecture import Architecture
from ...model.layers import Axis, LinearSpec
from ..cpu.executor import arranged
from ..models.sharding import Cut, Get
from .sites import LoraSites


class NativeLayout:
    """See Layout."""

    def __init__(
        self, sites: LoraSites, whole: Architecture, own: Architecture, cut: Cut, open_weights: Callable[[], Get]
    ) -> None:
        """`own` is the shape of this member's part, `cut` says which that is; `open_weights` of the whole model."""
        self._sites, self._whole, self._own, self._cut = sites, whole, own, cut
        self._open_weights = open_weights

    @cached_property
    def _linears(self) -> dict[str, LinearSpec]:
        there = {module for site in self._sites.linears for module in site.modules}
        layers = map(self._whole.layer_at, range(self._whole.layers))
        return {linear.name: linear for layer in layers for linear in layer.linears() if linear.name in there}

    @cached_property
    def sizes(self) -> dict[str, tuple[int, int]]:
        """See Layout."""

        def size(axis: Axis) -> int:
            return self._whole.size(axis)

        return {name: (sum(map(size, one.rows)), size(one.columns)) for name, one in self._linears.items()}

    def own_rows(self, module: str, tensor: Tensor) -> Tensor:
        """See Layout."""
        linear, parts, first = self._linears[module], [], 0
        for axis in linear.rows:
            rows, whole = self._cut(axis)
            parts.append(tensor[first + rows.start : first + rows.stop])
            first += whole
        return torch.cat(list(arranged(linear, torch.cat(parts), self._own)))

    def own_columns(self, module: str, tensor: Tensor) -> Tensor:
        """See Layout."""
        return tensor[:, self._cut(self._linears[module].columns)[0]]

    def weights(self) -> Callable[[str], Tensor]:
        """See Layout."""
        get = self._open_weights()

        def weight(module: str) -> Tensor:
            scales = self._whole.row_scales(self._linears[module])
            stored = get(f"{module}.weight")
            return stored if scales is None else stored.float() * get(f"{module}.{scales}").float()[:, None]

        return weight
