"""Experts on a CPU: each token goes through a few of many small MLPs, those that its router chose.

    out[t] = Σ over its choices c of share[t, c] · down_e(act(up_e(x[t])))        with e = chosen[t, c]
Pairs of tokens and choices are sorted by expert, so that each expert that is hit multiplies its tokens at once; those
that are not hit cost nothing. A sum is made in the order of a token's choices, so that its bits do not follow from what
else the step computes, where the experts' products do not either.

Measured (tools/bench/experts: one thread of a Zen 4, hidden 1024, 32 experts of 512, 4 for a token, CPU ms a layer;
the last two are transformers'. Its `batched_mm` copies weights for each token, and takes 5 to 14 times as long):
    rows (experts hit)   plain   packed   int8     eager   grouped_mm
    1 (4)                 2.19     3.10   1.22      2.22         2.24
    4 (15)                7.97    11.23   4.36      8.91         7.41
    8 (20)               10.98    15.26   6.06     12.33        10.19
    32 (32)              24.47    23.84  11.46     26.92        22.74
    128 (32)             47.15    33.44  16.93     49.05        44.46
Decoding gives an expert one row or two, so in float32 weights stay as they are; in bfloat16 packed ones take less for
any number of rows (9.8 against 7.8 ms for 8).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...lora.sites import LoraSites
from ...quantization.base import CpuLinear
from .expert_balance import ExpertBalance

Activate = Callable[[Tensor], Tensor]
MakeLinear = Callable[[Tensor, Tensor | None], CpuLinear]


class Expert(NamedTuple):
    """One of the small MLPs."""

    up: CpuLinear  # what is activated: gate and up as one, or up alone
    down: CpuLinear


class Experts:
    """Those of one layer that this process has: number `first` and on."""

    def __init__(self, experts: Sequence[Expert], activate: Activate, first: int = 0, of_inputs: bool = False) -> None:
        """`activate` makes of what `up` makes what `down` takes. `of_inputs`: shares multiply tokens, not what becomes
        of them.
        """
        self.experts = list(experts)
        self.balance: ExpertBalance | None = None  # of --enable-eplb
        self.places: np.ndarray | None = None  # of experts that are not one after the other: where each is, or -1
        self.of_inputs = of_inputs
        self.activate = activate
        self.first = first
        self.lora: LoraSites | None = None  # where adapters may change them

    def __call__(self, x: Tensor, chosen: Tensor, shares: Tensor) -> Tensor:
        """`x` [tokens, hidden]; `chosen` and `shares` [tokens, choices]. What another process has counts as 0."""
        choices = chosen.shape[1]
        if self.balance is not None:
            self.balance.see(chosen)
        numbers = chosen.reshape(-1).numpy()
        numbers = numbers - self.first if self.places is None else self.places[numbers]
        order = np.argsort(numbers, kind="stable")
        bounds = np.searchsorted(numbers[order], np.arange(len(self.experts) + 1))
        own = order[bounds[0] : bounds[-1]]
        tokens = torch.from_numpy(own // choices)
        inputs = x[tokens]
        if self.of_inputs:
            inputs = inputs * shares.reshape(-1, 1)[torch.from_numpy(own)].to(inputs.dtype)
            shares = torch.ones_like(shares)
        results = torch.empty_like(inputs)
        hit = np.flatnonzero(np.diff(bounds)).tolist()
        for expert, first, end in zip(
            hit, (bounds[hit] - bounds[0]).tolist(), (bounds[1:][hit] - bounds[0]).tolist(), strict=True
        ):
            results[first:end] = self._made(self.experts[expert], inputs[first:end], tokens[first:end])
        return _sum(results, own, shares, x)

    def _made(self, expert: Expert, x: Tensor, tokens: Tensor) -> Tensor:
        """What one makes of some of the step's tokens, of which each has its own adapter."""
        if self.lora is None or not self.lora.parts:
            return expert.down(self.activate(expert.up(x)))
        with self.lora.narrowed(tokens) if self.lora.changes(*expert) else nullcontext():
            return expert.down(self.activate(expert.up(x)))


def take_experts(module: Any, make: MakeLinear) -> Experts:
    """The experts of a module as transformers has them, all in one tensor for each product, which it has no more then.

    What transformers says of such a class (integrations/moe.py) is heeded: whether weights are [inputs, outputs],
    biased, gated, and how a gate is applied. `make` prepares one weight [outputs, inputs] with its bias; it must not
    keep the tensor that it is given, which is a part of one of all experts.
    """
    up = "gate_up_proj" if module.has_gate else "up_proj"
    ups, downs = _linears(module, up, make), _linears(module, "down_proj", make)
    experts = [Expert(*pair) for pair in zip(ups, downs, strict=True)]
    return Experts(experts, module._apply_gate if module.has_gate else module.act_fn)


def _linears(module: Any, name: str, make: MakeLinear) -> list[CpuLinear]:
    """Those of all experts, of a parameter that is let go."""
    weights = getattr(module, name).detach()
    biases = getattr(module, f"{name}_bias").detach() if module.has_bias else [None] * len(weights)
    made = [
        make(weight.t() if module.is_transposed else weight, bias) for weight, bias in zip(weights, biases, strict=True)
    ]
    delattr(module, name)
    return made


def _sum(results: Tensor, pairs: np.ndarray, shares: Tensor, x: Tensor) -> Tensor:
    """Each token's sum of its results [pairs, hidden], in float32; `pairs` says whose they are, of which choice."""
    index = torch.from_numpy(pairs)
    weighted = results.float().mul_(shares.reshape(-1, 1)[index].float())
    tokens, choices = shares.shape
    missing = len(pairs) < shares.numel()
    by_token = (
        weighted.new_zeros(shares.numel(), x.shape[1])
        if missing
        else torch.empty(shares.numel(), x.shape[1], dtype=weighted.dtype)
    )
    by_token[index] = weighted
    parts = by_token.view(tokens, choices, -1).unbind(1)
    total = parts[0].clone()
    for part in parts[1:]:
        total.add_(part)
    return total.to(x.dtype)
