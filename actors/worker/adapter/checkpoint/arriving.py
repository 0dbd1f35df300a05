"""Parts of a model that are made of their weights as these come, so that no more of them is there than must be.

A model is built without weights (`without_weights`). Whoever loads it sets one parameter after the other; as soon as a
module has all of its own, what is quicker takes its place (worker/adapter/improve.py), and the weights that it was
made of go.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import initialization

from ....model.quantization import INT8, QuantMethod
from ..divided.cuts import OUTPUTS, Cut, Division
from ..improve import READ, Maker, groups, is_from_memory, is_table

Chosen = Callable[[], QuantMethod]  # how the weights are kept that came last
Scales = Callable[[Tensor], Tensor | None]  # of what a weight's rows are whole numbers of 8 bits, if they are


@contextmanager
def without_weights() -> Iterator[None]:
    """Parameters of modules that are made meanwhile have shapes only; buffers are what they are."""
    register = nn.Module.register_parameter

    def empty(self: nn.Module, name: str, param: nn.Parameter | None) -> None:
        if param is not None and not param.is_meta:
            param = nn.Parameter(param.detach().to("meta"), requires_grad=False)
        register(self, name, param)

    nn.Module.register_parameter = empty  # type: ignore[method-assign]
    try:
        with initialization.no_init_weights(), initialization.no_tie_weights():
            yield
    finally:
        nn.Module.register_parameter = register  # type: ignore[method-assign]


class Arrivals:
    """Waits for the parameters of all modules of a model."""

    def __init__(
        self,
        model: Any,
        dtype: torch.dtype,
        chosen: Chosen,
        scales: Scales,
        better: bool,
        table: torch.dtype,
        division: Division | None,
    ) -> None:
        """`better`: what is quicker takes a module's place; else nothing does. `table` is the type of embeddings.
        `division`: of weights that come whole a part is kept."""
        self.division = division
        self.cut_names = {} if division is None else division.cuts(model)
        self.cuts: dict[nn.Module, Cut] = {model.get_submodule(name): cut for name, cut in self.cut_names.items()}
        self.dtype, self.chosen, self.scales_of, self.better = dtype, chosen, scales, better
        self.scales: dict[nn.Module, Tensor] = {}  # of linear layers that are made int8
        self.from_memory = is_from_memory(model, dtype)
        self.methods: dict[nn.Module, QuantMethod] = {}  # of modules whose weights are there
        self.places: dict[nn.Module, list[tuple[nn.Module, str]]] = {}
        self.together: dict[nn.Module, tuple[nn.Module, list[str]]] = {}
        self.tied = _tied(model)
        self.waiting: dict[nn.Module, type[nn.Module]] = {}  # and what they were
        for parent in model.modules():
            for name, child in parent.named_children():
                self.places.setdefault(child, []).append((parent, name))
            for names in groups(parent):
                children = [getattr(parent, name) for name in names]
                if not self.tied & {*children}:
                    self.together |= dict.fromkeys(children, (parent, names))
        logits_apart = isinstance(model.get_output_embeddings(), nn.Linear)  # else tables may be multiplied, too
        for module in list(model.modules()):
            if better and logits_apart and is_table(module):
                module.weight = nn.Parameter(module.weight.to(table), requires_grad=False)
            if any(parameter is not None and parameter.is_meta for parameter in module._parameters.values()):
                self._wait(module)

    def stop(self) -> None:
        """What has not come by now does not come this way."""
        for module, own in self.waiting.items():
            object.__setattr__(module, "__class__", own)
        self.waiting.clear()

    def _wait(self, module: nn.Module) -> None:
        """A parameter is set as any attribute is; a module's class may see to that."""
        own, come = type(module), self._come
        self.waiting[module] = own

        class Waiting(own):  # type: ignore[valid-type,misc]
            def __setattr__(self, name: str, value: Any) -> None:
                super().__setattr__(name, value)
                if not any(parameter is not None and parameter.is_meta for parameter in self._parameters.values()):
                    come(self)

        Waiting.__name__ = own.__name__
        object.__setattr__(module, "__class__", Waiting)

    def _come(self, module: nn.Module) -> None:
        """All parameters of a module are there."""
        object.__setattr__(module, "__class__", self.waiting.pop(module))
        self.methods[module] = self.chosen()
        better = self.better and module not in self.tied
        if better and self.methods[module] is INT8 and isinstance(module, nn.Linear):
            scales = self.scales_of(module.weight.detach())
            if scales is not None:
                self.scales[module] = scales
        if module not in self.tied:
            self._take_part(module)
        if not better:
            return
        parent, names = self.together.get(module, (None, []))
        if parent is None:
            self._replace(module)
            return
        children = [getattr(parent, name) for name in names]
        if any(child not in self.methods for child in children):
            return
        if len({self.methods[child].name for child in children}) > 1:
            for child in children:
                self._replace(child)
            return
        self._maker(module).join(parent, names)
        for child in children:
            self._forget(child)

    def _take_part(self, module: nn.Module) -> None:
        """Of a weight that is whole, where the model is divided."""
        cut = self.cuts.pop(module, None)
        if cut is None or self.division is None:
            return
        self.division.take(module, cut)
        if cut.side == OUTPUTS and module in self.scales:
            self.scales[module] = self.division.own(self.scales[module], 0)

    def take_rest(self) -> None:
        """Of what shares its weight with another module, which stays whole."""
        for module in list(self.cuts):
            self._take_part(module)

    def _maker(self, module: nn.Module) -> Maker:
        return Maker(self.dtype, self.methods[module], self.from_memory, self.scales)

    def _replace(self, module: nn.Module) -> None:
        if any(name in READ for _, name in self.places[module]):
            return
        better = self._maker(module).better(module)
        if better is not None:
            for parent, name in self.places[module]:
                setattr(parent, name, better)
            self._forget(module)

    def _forget(self, module: nn.Module) -> None:
        """Its weights go at once, whoever still knows it."""
        module._parameters.clear()
        for known in (self.methods, self.places, self.together, self.scales):
            known.pop(module, None)


def _tied(model: Any) -> set[nn.Module]:
    """Modules that share a parameter with another, which is told when all have come."""
    names = getattr(model, "all_tied_weights_keys", None) or {}
    return {model.get_submodule(name.rpartition(".")[0]) for pair in names.items() for name in pair}
