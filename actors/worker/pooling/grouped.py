"""Attention as flat.py has it, on a GPU: texts of like lengths side by side, so that a layer takes a few kernels, and
not a few for each text.

Behind the end of a text its last token is repeated, which no other token sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from ..adapter.hooks import Call, Mask, Unfit
from ..transfer import to_device
from .divided import by_length
from .flat import biased, check_options


class _Group(NamedTuple):
    """Texts that are computed together."""

    tokens: Tensor  # int64 [texts, longest]: where in the row a token lies
    there: Tensor | None  # bool [texts, 1, longest]: which of them are the text's; None: all


class GroupedAttention:
    """Of one forward pass. Implements adapter/hooks.py:Attending."""

    def __init__(self, sizes: Sequence[int], device: torch.device) -> None:
        """`sizes`: the texts' tokens."""
        self.longest = max(sizes)
        starts, place, behind = [0, *accumulate(sizes)], np.empty(sum(sizes), np.int64), 0
        self._groups: list[_Group] = []
        for texts in by_length(sizes):
            lengths = np.array([sizes[text] for text in texts])
            at = np.arange(lengths.max())
            first = np.array([starts[text] for text in texts])[:, None]
            there = at < lengths[:, None]
            whole = None if there.all() else to_device(there[:, None], device)
            self._groups.append(_Group(to_device(first + np.minimum(at, lengths[:, None] - 1), device), whole))
            place[(first + at)[there]] = behind + np.flatnonzero(there)
            behind += there.size
        self._place = to_device(place, device)
        self._masks: dict[int, tuple[Mask, list[Tensor | None]]] = {}  # by the mask's identity, which is kept for that

    def attend(self, call: Call) -> Tensor:
        check_options(call, self.longest)
        given = [part[0].transpose(0, 1) for part in (call.queries, call.keys, call.values)]
        causal = call.mask is None and bool(getattr(call.module, "is_causal", False))
        made = [
            self._attend_in(group, given, call, _behind(group) if causal else seen)
            for group, seen in zip(self._groups, self._seen(call.mask), strict=True)
        ]
        return torch.cat(made)[self._place][None]

    def _attend_in(self, group: _Group, given: Sequence[Tensor], call: Call, seen: Tensor | None) -> Tensor:
        """[texts · longest, heads, value_dim]."""
        queries, keys, values = (part[group.tokens].transpose(1, 2) for part in given)
        if (shared := queries.shape[1] // keys.shape[1]) > 1:
            keys, values = (part.repeat_interleave(shared, 1) for part in (keys, values))
        mask = group.there if seen is None else seen
        mask = None if mask is None else mask[:, None]
        bias: Tensor | None = call.options.get("position_bias")
        if bias is not None:
            longest = group.tokens.shape[1]
            mask = biased(bias[:, :, :longest, :longest], mask)
        scale = call.options.get("scaling")
        made = functional.scaled_dot_product_attention(queries, keys, values, mask, scale=scale)
        return made.transpose(1, 2).flatten(0, 1)

    def _seen(self, mask: object) -> list[Tensor | None]:
        """Of each group, which keys the queries of a text see, [texts, longest, longest]; None: all of their text."""
        if mask is None:
            return [None] * len(self._groups)
        if not isinstance(mask, Mask):
            raise Unfit("has a mask of its own")
        found = self._masks.get(id(mask))
        if found is None:
            found = self._masks[id(mask)] = mask, [_ask(mask, group) for group in self._groups]
        return found[1]


def _ask(mask: Mask, group: _Group) -> Tensor | None:
    """Once a step: whether it is all is worth a look at the device, for the sake of the kernels without masks."""
    index = group.tokens
    zero = torch.zeros_like(index[0, 0])
    seen = torch.as_tensor(mask.predicate(zero, zero, index[:, :, None], index[:, None]))
    seen = seen.expand(*index.shape, index.shape[1])
    if bool(seen.all()):
        return None
    return seen if group.there is None else seen & group.there


def _behind(group: _Group) -> Tensor:
    """What comes before a token, and itself."""
    seen = group.tokens[:, :, None] >= group.tokens[:, None]
    return seen if group.there is None else seen & group.there
