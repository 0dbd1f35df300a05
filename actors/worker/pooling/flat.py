"""Attention of several texts that lie one behind the other in one row: each sees itself alone.

What a token sees of its own text is asked of transformers' own predicate, once a step for each kind of layer.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..adapter.hooks import Call, Mask, Unfit

UNKNOWN = ("softcap", "s_aux")  # what layers may ask for beside


class FlatAttention:
    """Of one forward pass. Implements adapter/hooks.py:Attending."""

    def __init__(self, sizes: Sequence[int]) -> None:
        """`sizes`: the texts' tokens."""
        self._bounds: list[tuple[int, int]] = []
        self.longest = max(sizes)
        start = 0
        for size in sizes:
            self._bounds.append((start, start + size))
            start += size
        self._masks: dict[int, tuple[Mask, list[Tensor | None]]] = {}  # by the mask's identity, which is kept for that

    def attend(self, call: Call) -> Tensor:
        check_options(call, self.longest)
        queries, keys, values = call.queries, call.keys, call.values
        shared = keys.shape[1] != queries.shape[1]
        out = queries.new_empty(1, queries.shape[2], queries.shape[1], values.shape[-1])
        causal = call.mask is None and bool(getattr(call.module, "is_causal", False))
        bias = call.options.get("position_bias")
        for (start, end), seen in zip(self._bounds, self._seen(call.mask), strict=True):
            mask = seen if bias is None else biased(bias[:, :, : end - start, : end - start], seen)
            part = functional.scaled_dot_product_attention(
                queries[:, :, start:end],
                keys[:, :, start:end],
                values[:, :, start:end],
                mask,
                scale=call.options.get("scaling"),
                is_causal=causal,
                enable_gqa=shared,
            )
            out[:, start:end] = part.transpose(1, 2)
        return out

    def _seen(self, mask: object) -> list[Tensor | None]:
        """Of each text, which keys its queries see; None: all."""
        if mask is None:
            return [None] * len(self._bounds)
        if not isinstance(mask, Mask):
            raise Unfit("has a mask of its own")
        found = self._masks.get(id(mask))
        if found is None:
            found = self._masks[id(mask)] = mask, [_ask(mask, *bounds) for bounds in self._bounds]
        return found[1]


def check_options(call: Call, longest: int) -> None:
    """Unfit if a layer asks for more than a scale, and a bias by distance for the longest text."""
    if asked := [name for name in UNKNOWN if call.options.get(name) is not None]:
        raise Unfit(f"asks for {', '.join(asked)}")
    bias = call.options.get("position_bias")
    if bias is not None and bias.shape[-1] != longest:
        raise Unfit("has a bias of its own")


def _ask(mask: Mask, start: int, end: int) -> Tensor | None:
    at = torch.arange(start, end)
    zero = torch.zeros((), dtype=torch.long)
    seen = torch.as_tensor(mask.predicate(zero, zero, at[:, None], at[None]))
    seen = seen.expand(end - start, end - start)
    return None if bool(seen.all()) else seen.contiguous()


def biased(bias: Tensor, seen: Tensor | None) -> Tensor:
    """What is added to scores, of which only some are seen."""
    return bias if seen is None else bias.masked_fill(~seen, -torch.inf)


def with_distances(model: nn.Module) -> list[nn.Module]:
    """The layers whose bias follows from how far tokens are apart (T5's kin)."""
    return [module for module in model.modules() if hasattr(module, "compute_bias")]


@contextmanager
def for_longest(layers: Sequence[Any], longest: int) -> Iterator[None]:
    """Meanwhile these make the bias of the longest text, of which all others' are parts: of the whole row it would take
    memory by the square of a step's tokens.
    """
    for layer in layers:
        layer.compute_bias = _Distances(layer.compute_bias, longest)
    try:
        yield
    finally:
        for layer in layers:
            del layer.compute_bias


class _Distances:
    """Takes the place of a layer's own method."""

    def __init__(self, own: Any, longest: int) -> None:
        self._own, self._longest = own, longest

    def __call__(self, *_: Any, **__: Any) -> Tensor:
        made: Tensor = self._own(self._longest, self._longest)
        return made.contiguous()
