"""A model of transformers divided among the members of a tensor-parallel group, by the plan that transformers has.

The plan (`base_model_tp_plan`) says by names of modules which linear layers are cut, and how:

    colwise                   each member has some of the outputs: heads of attention, numbers of an MLP
    rowwise                   each has some of the inputs: its own outputs of the layer before; answers are added up
    colwise_gather_output     some of the outputs, which are gathered: all go on with all of them
    rowwise_split_input       some of the inputs, which it takes of all; answers are added up

All else (norms, embeddings) each member has whole. A weight is cut when it has been read, so that a member keeps its
part alone. What a plan says is tried (trial.py) before any weight is read.
"""

from __future__ import annotations

import re
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor, nn

from ..hooks import Unfit

OUTPUTS, INPUTS = 0, 1
WHOLE = ("embedding_rowwise", "replicate", "replicated_with_grad_allreduce")
EXPERTS = ("moe_tp_experts", "moe_identity_expert", "packed_colwise", "packed_rowwise")


class Cut(NamedTuple):
    """How a linear layer is."""

    side: int  # of its weight
    whole: bool = False  # what is cut is given to it, or asked of it, as a whole


CUTS = {
    "colwise": Cut(OUTPUTS),
    "colwise_gather_output": Cut(OUTPUTS, True),
    "rowwise": Cut(INPUTS),
    "rowwise_split_input": Cut(INPUTS, True),
}


class Group(Protocol):
    """Who has the other parts; see worker/tensor_parallel.py."""

    def all_reduce(self, x: Tensor) -> Tensor:
        """The sum of all members' x, in its place."""

    def all_gather(self, part: Tensor) -> Tensor:
        """[rows, size * columns] of all members' [rows, columns]."""


class Division:
    """One member's."""

    def __init__(self, rank: int, size: int) -> None:
        self.rank, self.size = rank, size
        self.group: Group | None = None  # None: of shapes alone is spoken

    def cuts(self, model: Any) -> dict[str, Cut]:
        """Of a model that is whole, by the names of modules. Unfit says why it cannot be divided so."""
        config = model.config.get_text_config(decoder=True)
        plan: dict[str, str] = getattr(model, "_tp_plan", None) or {}
        if not plan or not getattr(config, "base_model_tp_plan", None):
            raise Unfit("has no plan by which transformers divides it")
        patterns = [(re.compile(re.escape(name).replace(r"\*", r"\d+")), kind) for name, kind in plan.items()]
        found: dict[str, Cut] = {}
        modules = dict(model.named_modules())
        for name in {**modules, **dict(model.named_parameters())}:
            kind = next((kind for pattern, kind in patterns if pattern.fullmatch(name)), None)
            if kind is None or kind in WHOLE:
                continue
            cut = self._cut(name, kind, modules.get(name))
            if cut is not None:
                found[name] = cut
        if not any(cut.side == INPUTS for cut in found.values()):
            raise Unfit("has no layers that the plan of transformers divides")
        return found

    def _cut(self, name: str, kind: str, module: nn.Module | None) -> Cut | None:
        """None: it stays whole."""
        if kind in EXPERTS:
            raise Unfit(f"has experts ({name}), which are divided in this server's own layers only")
        cut = CUTS.get(kind)
        if cut is None or type(module) is not nn.Linear:
            raise Unfit(f"divides {name} in a way that is not known here ({kind})")
        numbers = module.weight.shape[cut.side]
        if numbers % self.size == 0:
            return cut
        if cut == CUTS["colwise_gather_output"]:
            return None
        side = "inputs" if cut.side == INPUTS else "outputs"
        raise Unfit(f"has {numbers} {side} in {name}, which {self.size} does not divide")

    def take(self, linear: Any, cut: Cut) -> None:
        """Of a linear layer that is whole this member's part stays. Of biases behind a sum the first has all."""
        linear.weight = nn.Parameter(self.own(linear.weight.detach(), cut.side), requires_grad=False)
        if linear.bias is not None and cut.side == OUTPUTS:
            linear.bias = nn.Parameter(self.own(linear.bias.detach(), 0), requires_grad=False)
        elif self.rank:
            linear.bias = None
        linear.out_features, linear.in_features = linear.weight.shape

    def own(self, whole: Tensor, side: int) -> Tensor:
        """This member's part, in memory of its own."""
        size = whole.shape[side] // self.size
        return whole.narrow(side, self.rank * size, size).clone(memory_format=torch.contiguous_format)

    def take_all(self, model: nn.Module, cuts: dict[str, Cut]) -> None:
        """The same of all layers of a model."""
        for name, cut in cuts.items():
            self.take(model.get_submodule(name), cut)

    def join(self, model: nn.Module, cuts: dict[str, Cut]) -> None:
        """Of a model of which each has its part, layers tell the group what it needs to know of them."""
        for name, cut in cuts.items():
            if cut == CUTS["colwise"]:
                continue
            parent, _, own = name.rpartition(".")
            module = model.get_submodule(name)
            setattr(model.get_submodule(parent), own, Summed(module, cut, self) if cut.side else Gathered(module, self))

    def sum(self, x: Tensor) -> Tensor:
        return x if self.group is None else self.group.all_reduce(x.contiguous())

    def gather(self, x: Tensor) -> Tensor:
        """All members' [..., columns], side by side."""
        if self.group is None:
            return torch.cat([x] * self.size, -1)
        return self.group.all_gather(x.reshape(-1, x.shape[-1])).view(*x.shape[:-1], -1)


class Summed(nn.Module):
    """A product of some of the inputs, to which those of the others are added."""

    def __init__(self, inner: Any, cut: Cut, division: Division) -> None:
        super().__init__()
        self.inner, self.split, self.division = inner, cut.whole, division
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, x: Tensor) -> Tensor:
        if self.split:
            x = x.chunk(self.division.size, -1)[self.division.rank]
        return self.division.sum(self.inner(x))


class Gathered(nn.Module):
    """All outputs, of which each member computes some."""

    def __init__(self, inner: Any, division: Division) -> None:
        super().__init__()
        self.inner, self.division = inner, division
        self.weight, self.bias = inner.weight, inner.bias

    def forward(self, x: Tensor) -> Tensor:
        return self.division.gather(self.inner(x))
