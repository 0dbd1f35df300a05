"""Attention, MLP and whole layers of transformers' models as few operations; which are such is tried (trial.py).

Around q, k and v joined into one product (improve.py): norms of heads and their rotation are one call of the kernels in
C, then rows are written to KV memory and attended to as they lie; gate and up, joined, are activated by one call. A
layer that is norm, attention, norm and MLP, each added to what came in, is one call where a step has few tokens.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from actorserve.kernels.cpu.native.heads import HeadRules, TurnedHeads, Turning
from actorserve.kernels.cpu.native.layers import PlainLayers

from ..hooks import running
from ..improve import JoinedProducts, LinearModule

Turn = tuple[Tensor | None, Tensor | None]  # cosines and sines of rows


class FusedAttention:
    """Takes the place of a module's forward pass."""

    def __init__(
        self,
        own: Callable[..., Any],
        joined: JoinedProducts,
        out: LinearModule,
        heads: TurnedHeads,
        layer: int,
        sinks: Tensor | None,
    ) -> None:
        """`layer` is that of the cache."""
        self.own, self.joined, self.out, self.heads, self.layer, self.sinks = own, joined, out, heads, layer, sinks

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        step: Any = running()
        hidden = kwargs.get("hidden_states")
        if args or hidden is None or not hasattr(step, "mix"):  # somebody looks at what the module does
            return self.own(*args, **kwargs)
        qkv = self.joined.product(hidden.reshape(-1, hidden.shape[-1]))
        self.heads(qkv, *rows_of(kwargs.get("position_embeddings"), hidden, self.heads.rules))
        mixed = step.mix(self.layer, qkv, self.heads.rules, self.sinks)
        return self.out.product(mixed).view(*hidden.shape[:-1], self.out.out_features), None


class FusedMlp:
    """Likewise."""

    def __init__(
        self,
        own: Callable[[Tensor], Tensor],
        joined: JoinedProducts,
        down: LinearModule,
        silu_mul: Callable[[Tensor], Tensor],
    ) -> None:
        self.own, self.joined, self.down, self.silu_mul = own, joined, down, silu_mul

    def __call__(self, x: Tensor) -> Tensor:
        if not hasattr(running(), "mix"):
            return self.own(x)
        gate_up = self.joined.product(x.reshape(-1, x.shape[-1]))
        return self.down.product(self.silu_mul(gate_up)).view(*x.shape[:-1], self.down.out_features)


class FusedLayer:
    """Likewise, of a whole layer."""

    def __init__(
        self,
        own: Callable[..., Any],
        attention: FusedAttention,
        layers: PlainLayers,
        number: int,
        alike: HeadRules | None = None,
    ) -> None:
        """It is the one with this number of `layers`. `alike`: the model is these layers, which are given the same to
        turn by; these rules are of one that turns, if any does."""
        self.own, self.attention, self.layers, self.number = own, attention, layers, number
        self.alike, self.rules = alike is not None, alike or attention.heads.rules

    def __call__(self, hidden: Tensor, *args: Any, **kwargs: Any) -> Any:
        step: Any = running()
        if args or not hasattr(step, "whole_layer"):
            return self.own(hidden, *args, **kwargs)
        turn = rows_of(kwargs.get("position_embeddings"), hidden, self.rules)
        done = step.whole_layer(self.layers, self.number, self.attention.layer, hidden, turn, self.alike)
        return self.own(hidden, **kwargs) if done is None else done


def rows_of(embeddings: Any, hidden: Tensor, rules: HeadRules) -> Turn:
    """Cosines and sines for each row of hidden states [batch, tokens, …]."""
    if rules.kind is Turning.NONE:
        return None, None
    cosines, sines = (part.expand(len(hidden), -1, -1).reshape(-1, part.shape[-1]) for part in embeddings)
    return cosines, sines
