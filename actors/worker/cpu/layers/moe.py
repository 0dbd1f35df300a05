"""A layer's experts with what chooses them, in place of its MLP (model/layers.py: MoeSpec)."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from ....model.architecture import Architecture
from ....model.layers import LinearSpec, MoeSpec
from ....model.shapes import Scoring
from ...lora.sites import LoraSites
from ...models.sharding import Get
from ...quantization.base import CpuLinear
from .elementwise import clamped_swiglu, exact_sigmoid
from .experts import Expert, Experts


class Builder(Protocol):
    """What makes products of a checkpoint's tensors."""

    @property
    def shape(self) -> Architecture: ...

    @property
    def get(self) -> Get: ...

    @property
    def lora(self) -> LoraSites | None: ...

    def linear(self, *linears: LinearSpec, few_rows: bool = False) -> CpuLinear: ...

    def router(self, linear: LinearSpec, float32: bool = False) -> CpuLinear: ...


class CpuMoe:
    """The experts of one layer, or those that this member of a group has."""

    def __init__(self, build: Builder, spec: MoeSpec, act: Callable[[Tensor], Tensor]) -> None:
        assert build.shape.moe is not None
        self.moe = build.shape.moe
        self.act = act
        self.float32_scores = spec.float32_scores
        self.router = build.router(spec.router, spec.float32_scores)
        self.correction = None if spec.correction is None else build.get(spec.correction).float()
        pairs = [spec.expert(index) for index in range(spec.experts)]
        experts = [Expert(build.linear(*up, few_rows=True), build.linear(down, few_rows=True)) for up, down in pairs]
        self.experts = Experts(experts, self._gated, spec.first, self.moe.of_inputs)
        self.experts.lora = build.lora
        self.shared: Expert | None = None
        if spec.shared_down is not None:
            self.shared = Expert(build.linear(*spec.shared_gate_up), build.linear(spec.shared_down))
        self.shared_gate = None if spec.shared_gate is None else build.router(spec.shared_gate)

    def __call__(self, x: Tensor) -> Tensor:
        """What all chosen experts make of each token; of a group's member its part of the sum."""
        scores = self.router(x.float() if self.float32_scores else x).float()
        scores = scores.softmax(-1) if self.moe.scoring is Scoring.SOFTMAX else exact_sigmoid(scores)
        if self.moe.groups is None and self.correction is None:
            shares, chosen = scores.topk(self.moe.per_token, -1)
        else:
            chosen = self._wanted(scores).topk(self.moe.per_token, -1).indices
            shares = scores.gather(1, chosen)
        if self.moe.normalised:
            shares = shares / shares.sum(-1, keepdim=True)
        if self.moe.factor != 1:
            shares = shares * self.moe.factor
        made = self.experts(x, chosen, shares)
        return made if self.shared is None else made.add_(self._shared(self.shared, x))

    def _wanted(self, scores: Tensor) -> Tensor:
        """By which experts are chosen; those of groups that are not kept cannot be."""
        wanted, groups = scores if self.correction is None else scores + self.correction, self.moe.groups
        if groups is None:
            return wanted
        by_group = wanted.unflatten(1, (groups.count, -1))
        kept = by_group.topk(groups.best, -1).values.sum(-1).topk(groups.kept, -1).indices
        left_out = torch.ones(by_group.shape[:2], dtype=torch.bool).scatter_(1, kept, False)
        possible: Tensor = by_group.masked_fill(left_out[:, :, None], -math.inf).flatten(1)
        return possible

    def add_to(self, residual: Tensor, x: Tensor) -> None:
        """residual += that."""
        residual.add_(self(x))

    def _shared(self, expert: Expert, x: Tensor) -> Tensor:
        """What all tokens go through."""
        inner = expert.down(self._gated(expert.up(x)))
        return inner if self.shared_gate is None else inner * exact_sigmoid(self.shared_gate(x))

    def _gated(self, gate_up: Tensor) -> Tensor:
        gate, up = gate_up.chunk(2, -1)
        if self.moe.clamped is not None:
            return clamped_swiglu(gate, up, self.moe.clamped)
        return self.act(gate).mul_(up)
