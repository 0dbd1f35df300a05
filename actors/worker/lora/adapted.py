"""Which linear layers of a model of transformers can be adapted, and how they lie in it.

One that does not see each token of a step once, as those of experts, cannot be: which do is seen when two tokens go
through the model.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ...model.lora.adapter import AdaptedLinear
from ..adapter.model import AdaptedModel
from ..adapter.probe import TOKENS, Recorder, run_probe
from .products import weight_of
from .sites import LoraHead, LoraLinear, LoraSites


class AdaptedLayout:
    """See Layout; a model of transformers is one worker's."""

    def __init__(self, sites: LoraSites, sizes: dict[str, tuple[int, int]]) -> None:
        """`sizes`: (outputs, inputs) of the layers that can be adapted."""
        self.sizes = sizes
        self._places = dict(_places(sites))

    def apart(self, module: str, linear: AdaptedLinear) -> dict[str, AdaptedLinear]:
        """See Layout; here they are not adapted."""
        return {module: linear}

    def own_rows(self, module: str, tensor: Tensor) -> Tensor:
        """See Layout."""
        return tensor

    def own_columns(self, module: str, tensor: Tensor) -> Tensor:
        """See Layout."""
        return tensor

    def weights(self) -> Callable[[str], Tensor]:
        """See Layout."""

        def weight(module: str) -> Tensor:
            site, index = self._places[module]
            first = sum(self.sizes[before][0] for before in site.modules[:index])
            return weight_of(site.base)[first : first + self.sizes[module][0]]

        return weight


def _places(sites: LoraSites) -> Iterator[tuple[str, tuple[LoraLinear, int]]]:
    for site in sites.linears:
        yield from ((name, (site, index)) for index, name in enumerate(site.modules))


class _Doubled(Recorder):
    """Plays the part of who computes two tokens; layers that go on with contexts are given twice as many."""

    def __init__(self, gathered: Collection[int]) -> None:
        super().__init__()
        self._gathered = gathered

    def update(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        super().update(layer, keys, values)
        if layer not in self._gathered:
            return keys, values
        return torch.cat([keys, keys], 2), torch.cat([values, values], 2)


def layout_of(model: AdaptedModel, sites: LoraSites) -> AdaptedLayout:
    """Of the layers that see each token of a step once; which these are, two tokens show."""
    sizes, counts = {}, {}
    modules = dict(model.model.named_modules())
    handles = []
    heads = {name for site in sites.linears if isinstance(site, LoraHead) for name in site.modules}
    for name in (name for site in sites.linears for name in site.modules):
        module: Any = modules[name]
        outputs, inputs = _sizes(module)
        sizes[name], counts[name] = (outputs, inputs), list[int]()
        handles.append(module.register_forward_pre_hook(partial(_count, counts[name], inputs)))
    try:
        run_probe(model.passes, model.traits.caches, _Doubled(model.traits.gathered))
    finally:
        for handle in handles:
            handle.remove()
    return AdaptedLayout(
        sites, {name: size for name, size in sizes.items() if name in heads or counts[name] == [TOKENS]}
    )


def _count(counts: list[int], inputs: int, module: nn.Module, given: Any) -> None:
    counts.append(given[0].numel() // inputs)


def _sizes(module: Any) -> tuple[int, int]:
    if type(module).__name__ == "Conv1D":
        return int(module.weight.shape[1]), int(module.weight.shape[0])
    return int(module.out_features), int(module.in_features)
