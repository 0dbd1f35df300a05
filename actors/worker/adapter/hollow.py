"""A model of full size without its weights: what its layers ask for can be seen, at no cost of memory or time.

Every parameter is one zero that is shown as its whole shape. Buffers of whole numbers, by which others are looked up or
divided, are what the model's class sets them to, and 0 where it sets nothing; those of truths are true. Products give
zeros of their width without being computed; all else is computed as it is, on the CPU, so that what depends on values
(which experts are hit) works as well. But of states that are gone through in chunks the shapes alone: a chunk of two
tokens costs as much as a full one, and of a large model's layers minutes.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from inspect import signature, unwrap
from types import FunctionType, MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only
from transformers import PreTrainedModel

IN_CHUNKS = ("chunk_", "torch_chunk_")  # what names of functions begin with that go through states so


def hollow(make: Any) -> nn.Module:
    """The model that `make` makes on the device `meta`, made to run."""
    with torch.device("meta"):
        model: nn.Module = make()
    model.eval()
    _count(model)
    parameters: dict[int, nn.Parameter] = {}  # by those on `meta`: modules that share one go on to
    for module in model.modules():
        shapes = _Shapes(module) if isinstance(module, nn.Linear) and _has_own_product(module) else None
        stores: tuple[dict[str, Any], ...] = (module._parameters, module._buffers)
        for tensors in stores:
            for name, tensor in tensors.items():
                if tensor is not None and tensor.device.type == "meta":
                    one = torch.full((), tensor.dtype == torch.bool, dtype=tensor.dtype).expand(tensor.shape)
                    own = nn.Parameter(one, requires_grad=False)
                    tensors[name] = parameters.setdefault(id(tensor), own) if tensors is stores[0] else one
        if type(module).__name__.endswith("Experts") and "hidden_states" in signature(module.forward).parameters:
            module.forward = _nothing
        if isinstance(module, nn.Linear) and type(module).forward is nn.Linear.forward:
            module.forward = _Zeros(module.out_features)  # type: ignore[assignment]
        if shapes is not None:
            module.forward = shapes
        _shape_chunks(module)
    return model


def _count(model: nn.Module) -> None:
    """Set buffers of whole numbers, as they are set when a checkpoint is read that lacks them."""
    models = (one for one in model.modules() if isinstance(one, PreTrainedModel))
    owners = {part: one for one in models for part in one.modules()}  # the innermost, which comes last
    for module, owner in owners.items():
        counts = {
            name: torch.zeros_like(tensor, device="cpu")
            for name, tensor in module._buffers.items()
            if tensor is not None and tensor.is_meta and not tensor.is_floating_point() and tensor.dtype != torch.bool
        }
        if counts:
            stand_in = copy.copy(module)  # with all else on `meta`, where it costs nothing
            stand_in._buffers = {**module._buffers, **counts}
            owner._init_weights(stand_in)
            module._buffers.update(counts)


def _has_own_product(linear: nn.Linear) -> bool:
    """Of one tensor alone, with its own weights alone."""
    forward = type(linear).forward
    return forward is not nn.Linear.forward and len(signature(linear.forward).parameters) == 1 and not linear._modules


def _nothing(hidden_states: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return torch.zeros_like(hidden_states)


def _shape_chunks(module: nn.Module) -> None:
    """Of functions that its forward pass calls, and that go through chunks, let it see the shapes alone."""
    forward: Any = unwrap(type(module).forward)  # what is around it moves weights between devices
    if not isinstance(forward, FunctionType):
        return
    known = forward.__globals__
    chunked = [name for name in forward.__code__.co_names if name.startswith(IN_CHUNKS) and name in known]
    if not chunked:
        return
    names = known | {name: _shaped(known[name]) for name in chunked}
    own = FunctionType(forward.__code__, names, forward.__name__, forward.__defaults__, forward.__closure__)
    own.__kwdefaults__ = forward.__kwdefaults__
    module.forward = MethodType(own, module)


def _shaped(function: Callable[..., Any]) -> Callable[..., Any]:
    """What it would give, as zeros."""

    def shapes(*args: Any, **kwargs: Any) -> Any:
        args, kwargs = tree_map_only(Tensor, lambda tensor: tensor.to("meta"), (args, kwargs))
        found = function(*args, **kwargs)
        return tree_map_only(Tensor, lambda tensor: torch.zeros_like(tensor, device="cpu"), found)

    return shapes


class _Shapes:
    """A product that is computed in another way, as it still stands on the device `meta`. What tells more than that, as
    routers do, is computed as it is.
    """

    def __init__(self, module: nn.Linear) -> None:
        self.forward = module.forward
        self.on_meta = copy.copy(module)
        self.on_meta._parameters, self.on_meta._buffers = {**module._parameters}, {**module._buffers}

    def __call__(self, x: Tensor) -> Any:
        product = self.on_meta.forward(x.to("meta"))
        return x.new_zeros(product.shape) if isinstance(product, Tensor) else self.forward(x)


class _Zeros:
    def __init__(self, width: int) -> None:
        self.width = width

    def __call__(self, x: Tensor) -> Tensor:
        return x.new_zeros((*x.shape[:-1], self.width))
