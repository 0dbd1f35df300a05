"""Where adapters take hold of a model of transformers.

A layer of ours (adapter/improve.py) gets a LoraLinear around its product; one that is transformers' own a hook behind
its forward pass. Names are transformers' own, as PEFT has them.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from ..adapter.improve import JoinedProducts, LinearModule, PartModule
from .products import bias_of
from .sites import LoraLinear, LoraSites

CONV1D = "Conv1D"  # a class of transformers, whose weight is transposed


class HookedProduct:
    """Stands for the product of a layer that computes itself."""

    def __init__(self, module: Any) -> None:
        self.module = module
        self.bias: Tensor | None = module.bias

    @property
    def weight(self) -> Tensor:
        """[outputs, inputs]."""
        weight: Tensor = self.module.weight.detach()
        return weight.t() if type(self.module).__name__ == CONV1D else weight

    def __call__(self, x: Tensor) -> Tensor:
        raise NotImplementedError("the layer computes it")

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        raise NotImplementedError("the layer computes it")


def attach(model: Any) -> LoraSites:
    """Room for adapters in a model."""
    sites, head = LoraSites(), model.get_output_embeddings()
    together: dict[int, tuple[JoinedProducts, dict[int, str]]] = {}
    for name, module in model.named_modules():
        if "experts" in name.split("."):
            continue
        if module is head:
            if isinstance(module, LinearModule):
                module.product = sites.wrap_head(module.product, name)
        elif isinstance(module, LinearModule):
            module.product = sites.wrap(module.product, [name], bias_of(module.product))
        elif isinstance(module, PartModule):
            together.setdefault(id(module.joined), (module.joined, {}))[1][module.index] = name
        elif isinstance(module, nn.Linear) or type(module).__name__ == CONV1D:
            _hook(module, sites.wrap(HookedProduct(module), [name], module.bias))
    for joined, names in together.values():
        modules = [names[index] for index in sorted(names)]
        joined.product = sites.wrap(joined.product, modules, bias_of(joined.product))
    return sites


def _hook(module: nn.Module, site: LoraLinear) -> None:
    def behind(_: nn.Module, given: Any, y: Tensor) -> Tensor:
        x: Tensor = given[0]
        if not site.sites.parts:
            return y
        made = y.reshape(-1, y.shape[-1]).clone()
        site.adapt(made, x.reshape(-1, x.shape[-1]))
        return made.view(y.shape)

    module.register_forward_hook(behind)
