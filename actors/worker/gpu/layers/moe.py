"""A layer's experts on a GPU with what chooses them, in place of its MLP (model/layers.py: MoeSpec).

Five launches, or six from 17 tokens on, of any size of step and with no look at the device:
    router · choice (and places) · gate-up of experts · down of experts · sum
An MLP for all tokens takes its own three, and one for its gate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Protocol

import torch
from torch import Tensor

from actorserve.kernels.triton.moe.experts import SILU, Gate, add_up, launch_of, run_experts
from actorserve.kernels.triton.moe.routing import MOST_CHOICES, MOST_EXPERTS, Routing, route
from actorserve.kernels.triton.moe.weights import GROUP, ExpertWeights, as_mxfp4, mxfp4_weights
from actorserve.kernels.triton.silu_mul import GATES

from ....model.architecture import Architecture
from ....model.layers import LinearSpec, MoeSpec
from ....model.shapes import MoeShape, Scoring
from ....options.config import ConfigError
from ...quantization.base import GpuLinear

EXPERT_GATES = {"silu": SILU, "gelu_tanh": Gate(gelu=True)}


class Builder(Protocol):
    """What makes products of a checkpoint's tensors."""

    @property
    def shape(self) -> Architecture: ...

    @property
    def batch_invariant(self) -> bool: ...

    def linear(self, *linears: LinearSpec) -> GpuLinear: ...

    def plain_linear(self, *linears: LinearSpec) -> GpuLinear: ...

    def router(self, linear: LinearSpec, float32: bool) -> GpuLinear: ...

    def experts(self, experts: Sequence[Sequence[LinearSpec]]) -> ExpertWeights: ...

    def exact(self, name: str) -> Tensor: ...


class GpuMoe:
    """The experts of one layer, or those that this member of a group has."""

    def __init__(self, build: Builder, spec: MoeSpec) -> None:
        moe = build.shape.moe
        assert moe is not None
        self.routing = routing_of(moe, spec)
        self.of_inputs = moe.of_inputs
        self.batch_invariant = build.batch_invariant
        own = moe.clamped
        self.gate = EXPERT_GATES[build.shape.activation] if own is None else Gate(False, own.alpha, own.limit, 1.0)
        self.correction = None if spec.correction is None else build.exact(spec.correction)
        self.act: Callable[[Tensor], Tensor] = GATES[build.shape.activation]
        self.router = build.router(spec.router, spec.float32_scores)
        pairs = [spec.expert(index) for index in range(spec.experts)]
        self.up = build.experts([up for up, _ in pairs])
        self.down = build.experts([[down] for _, down in pairs])
        self.shared: tuple[GpuLinear, GpuLinear] | None = None
        if spec.shared_down is not None:
            self.shared = build.linear(*spec.shared_gate_up), build.linear(spec.shared_down)
        self.shared_gate = None if spec.shared_gate is None else build.plain_linear(spec.shared_gate)

    def __call__(self, x: Tensor, slots: Tensor) -> Tensor:
        """What all chosen experts make of each token; of a group's member its part of the sum.

        `slots`: where a token's keys go; those of tokens that fill up a graph are -1, which hit no expert.
        """
        pairs = len(x) * self.routing.choices
        launch = launch_of(x.dtype, pairs, self.routing.experts, self.up.format, self.batch_invariant)
        routed = route(self.router(x), self.routing, launch.block, slots, self.correction)
        made = run_experts(x, routed, self.up, self.down, self.gate, launch, self.of_inputs)
        if self.shared is None:
            return add_up(made, routed)
        gate_up, down = self.shared
        gate = None if self.shared_gate is None else self.shared_gate(x)
        return add_up(made, routed, down(self.act(gate_up(x))), gate)


def routing_of(moe: MoeShape, spec: MoeSpec) -> Routing:
    """How tokens come to the experts that are here."""
    sigmoid = moe.scoring is Scoring.SIGMOID
    routing = Routing(moe.routed, moe.per_token, sigmoid, moe.normalised, moe.factor, spec.first, spec.experts)
    if moe.groups is None or moe.groups.count == 1:
        return routing
    return routing._replace(groups=moe.groups.count, kept=moe.groups.kept, best=moe.groups.best)


def check_experts(moe: MoeShape) -> None:
    """ConfigError unless the kernels can take them."""
    if moe.routed > MOST_EXPERTS or moe.per_token > MOST_CHOICES:
        raise ConfigError(
            f"model: {moe.per_token} of {moe.routed} experts for each token; on a GPU up to {MOST_CHOICES} of "
            f"{MOST_EXPERTS} (--device cpu takes any)"
        )
    if moe.clamped is not None and moe.shared_intermediate_size:
        what = "have a gate of their own, as a shared one has"
        raise ConfigError(f"model: its experts {what}, which is computed on a CPU only (--device cpu)")
    if moe.groups is not None and moe.groups.count > 1 and moe.groups.best > (1 + (moe.scoring is Scoring.SIGMOID)):
        what = f"are chosen by groups, and these by the {moe.groups.best} best of each"
        raise ConfigError(f"model: its experts {what}, which is computed on a CPU only (--device cpu)")


Reader = Callable[[Sequence[LinearSpec], str], Tensor]  # what the linears of one expert have of a kind, joined


def join_experts(experts: Sequence[Sequence[LinearSpec]], read: Reader) -> ExpertWeights:
    """One tensor of all."""
    weight = _stacked(len(experts), (read(linears, "weight") for linears in experts))
    return ExpertWeights(weight, weight.shape[2], bias=_biases(experts, read))


def join_mxfp4(
    experts: Sequence[Sequence[LinearSpec]],
    read: Reader,
    dtype: torch.dtype,
    read_groups: Callable[[Sequence[LinearSpec]], Tensor | None],
) -> ExpertWeights:
    """The same of numbers that a checkpoint has in MXFP4, one expert after the other: nothing is rounded.

    But where a group of workers cuts columns within what shares a scale: there they become floats. `read_groups` reads
    the bytes [rows, groups, 17] of the linears of an expert, a scale behind its numbers, where these can be had.
    """
    bias = _biases(experts, read)
    bias = None if bias is None else bias.to(dtype)
    if read_groups(experts[0]) is not None:
        return _rounded(experts, lambda linears, kind: _there(read_groups(linears)), _of_groups)._replace(bias=bias)
    first = read(experts[0], "weight")
    if first.shape[1] % GROUP:
        weight = _stacked(len(experts), (read(linears, "weight").to(dtype) for linears in experts))
        return ExpertWeights(weight, weight.shape[2], bias=bias)
    return _rounded(experts, read, as_mxfp4)._replace(bias=bias)


def _of_groups(groups: Tensor) -> ExpertWeights:
    return mxfp4_weights(groups[..., :-1], groups[..., -1])


def _there(groups: Tensor | None) -> Tensor:
    assert groups is not None, "all experts are cut alike"
    return groups


def join_rounded(
    experts: Sequence[Sequence[LinearSpec]], read: Reader, make: Callable[[Tensor], ExpertWeights]
) -> ExpertWeights:
    """The same of floats, rounded one expert after the other."""
    return _rounded(experts, read, make)._replace(bias=_biases(experts, read))


def _rounded(
    experts: Sequence[Sequence[LinearSpec]], read: Reader, make: Callable[[Tensor], ExpertWeights]
) -> ExpertWeights:
    """Each goes to its place in what all have together: nothing is there twice."""
    made = (make(read(linears, "weight")[None]) for linears in experts)
    first = next(made)
    numbers, scales, middles = (
        None if part is None else part.new_empty(len(experts), *part.shape[1:])
        for part in (first.numbers, first.scales, first.middles)
    )
    assert numbers is not None
    for index, one in enumerate(chain([first], made)):
        for whole, part in ((numbers, one.numbers), (scales, one.scales), (middles, one.middles)):
            if whole is not None and part is not None:
                whole[index] = part[0]
    return ExpertWeights(numbers, first.inputs, scales, middles)


def _biases(experts: Sequence[Sequence[LinearSpec]], read: Reader) -> Tensor | None:
    return _stacked(len(experts), (read(linears, "bias") for linears in experts)) if experts[0][0].bias else None


def _stacked(count: int, parts: Iterator[Tensor]) -> Tensor:
    first = next(parts)
    made = torch.empty(count, *first.shape, dtype=first.dtype, device=first.device)
    for index, part in enumerate(chain([first], parts)):
        made[index] = part
    return made
