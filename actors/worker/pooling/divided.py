"""Modules that look from token to token in a way of their own: in a step whose texts lie in one row each is called once
for each text, with that text's part of what it is given. All else of the model is computed for the whole row.

What is of tokens, and what of pairs of them, is known by the names that models of transformers have for it; whether it
is right is tried (encoder.py).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

ENDS = ("SelfAttention", "ConvLayer")  # of the names of such modules' classes
TOKENS = ("hidden_states", "query_states", "residual_states", "input_mask")  # [1, tokens, …]
PAIRS = ("attention_mask", "position_bias", "relative_pos")  # [1, …, tokens, tokens]
MOST_TOKENS = 512  # of a row: what there is of pairs, a model makes of all of it
PADDING = 1.25  # so many times the tokens may be computed where texts are padded


class Divided:
    """Those of one model."""

    def __init__(self, model: nn.Module) -> None:
        self._sizes: Sequence[int] = ()
        found = [module for module in model.modules() if type(module).__name__.endswith(ENDS)]
        for module in found:
            own: Callable[..., Any] = module.forward
            module.forward = partial(self._forward, own, inspect.signature(own))

    def begin(self, sizes: Sequence[int]) -> None:
        """From now on a row has texts of so many tokens; of none: modules are called as they are."""
        self._sizes = sizes

    def _forward(self, own: Callable[..., Any], signature: inspect.Signature, *args: Any, **kwargs: Any) -> Any:
        if not self._sizes:
            return own(*args, **kwargs)
        bound, made, start = signature.bind(*args, **kwargs), [], 0
        whole = dict(bound.arguments)
        for size in self._sizes:
            at = slice(start, start + size)
            bound.arguments.update({name: _part(name, given, at) for name, given in whole.items()})
            made.append(own(*bound.args, **bound.kwargs))
            start += size
        if isinstance(made[0], Tensor):
            return torch.cat(made, 1)
        return torch.cat([some[0] for some in made], 1), *(None for _ in made[0][1:])


def _part(name: str, given: Any, at: slice) -> Any:
    if not isinstance(given, Tensor):
        return given
    if name in TOKENS:
        return given[:, at]
    if name in PAIRS:
        columns = given[..., at] if given.shape[-1] > 1 else given
        return columns[..., at, :] if columns.shape[-2] > 1 else columns
    return given


def rows_of(sizes: Sequence[int]) -> list[range]:
    """Which texts, in their order, share a row."""
    rows, first, total = list[range](), 0, 0
    for number, size in enumerate(sizes):
        if number > first and total + size > MOST_TOKENS:
            rows.append(range(first, number))
            first, total = number, 0
        total += size
    return [*rows, range(first, len(sizes))]


def by_length(sizes: Sequence[int]) -> list[list[int]]:
    """Indices of texts that are computed side by side: of like lengths, so that little is padded."""
    groups: list[list[int]] = []
    total = 0
    for index in sorted(range(len(sizes)), key=lambda index: -sizes[index]):
        size = sizes[index]
        if groups and sizes[groups[-1][0]] * (len(groups[-1]) + 1) <= PADDING * (total + size):
            groups[-1].append(index)
            total += size
        else:
            groups.append([index])
            total = size
    return groups
