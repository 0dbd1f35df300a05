"""A model of full size without its weights: what its layers ask for can be seen, at no cost of memory or time.

Every parameter is one zero that is shown as its whole shape. Products give zeros of their width without being computed;
all else is computed as it is, on the CPU, so that what depends on values (which experts are hit) works as well.
"""

from __future__ import annotations

import copy
from inspect import signature
from typing import Any

import torch
from torch import Tensor, nn


def hollow(make: Any) -> nn.Module:
    """The model that `make` makes on the device `meta`, made to run."""
    with torch.device("meta"):
        model: nn.Module = make()
    model.eval()
    parameters: dict[int, nn.Parameter] = {}  # by those on `meta`: modules that share one go on to
    for module in model.modules():
        own_product = isinstance(module, nn.Linear) and type(module).forward is not nn.Linear.forward
        shapes = _Shapes(module) if own_product else None
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in stores:
            for name, tensor in tensors.items():
                if tensor is not None and tensor.device.type == "meta":
                    zeros = torch.zeros((), dtype=tensor.dtype).expand(tensor.shape)
                    own = nn.Parameter(zeros, requires_grad=False)
                    tensors[name] = parameters.setdefault(id(tensor), own) if tensors is stores[0] else zeros
        if type(module).__name__.endswith("Experts") and "hidden_states" in signature(module.forward).parameters:
            module.forward = _nothing
        if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
            module.forward = _Zeros(module.out_features)  # type: ignore[assignment]
        if shapes is not None:
            module.forward = shapes
    return model


def _nothing(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.zeros_like(hidden_states)


class _Shapes:
    """A product that is computed in another way, as it still stands on the device `meta`."""

    def __init__(self, module: nn.Module) -> None:
        self.module = copy.copy(module)
        self.module._parameters = {**module._parameters}

    def __call__(self, x: Tensor) -> Tensor:
        return x.new_zeros(self.module.forward(x.to("meta")).shape)


class _Zeros:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, x: Tensor) -> Tensor:
        return x.new_zeros((*x.shape[:-1], self.width))
