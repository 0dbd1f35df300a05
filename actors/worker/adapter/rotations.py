"""Rotations that follow the longest text of a step, made those of the longest text that a server may have.

transformers turns short texts by other factors than long ones (longrope), and looks for which by the positions of one
forward pass. Here a pass has tokens of many texts, and one text's come in several: whose keys were turned in one way
would be met by queries in the other. As with this server's own layers (model/rope.py) one length counts for all.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

FOLLOWING = ("longrope", "dynamic")
POSITIONS = "position_ids"


class Settled:
    """Takes the place of a forward pass that makes cosines and sines: of one more position, the last that may be."""

    def __init__(self, own: Any, last: int) -> None:
        self.own, self.last = own, last

    def __call__(self, x: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, ...]:
        given = dict(kwargs)
        positions = given.pop(POSITIONS) if POSITIONS in given else args[0]
        more = positions.new_full((*positions.shape[:-1], 1), self.last)
        others = args if POSITIONS in kwargs else args[1:]
        made = self.own(x, torch.cat([positions, more], -1), *others, **given)
        return tuple(part[..., :-1, :] for part in made)


def settle(model: nn.Module, length: int) -> bool:
    """Texts of a model have up to `length` tokens; is there anything that follows that?"""
    found = list(_following(model))
    for module in found:
        module.forward = Settled(module.forward, length - 1)
    return bool(found)


def _following(model: nn.Module) -> Iterator[nn.Module]:
    for module in model.modules():
        kinds = getattr(module, "rope_type", None)
        if any(kind in FOLLOWING for kind in (kinds.values() if isinstance(kinds, dict) else (kinds,))):
            yield module
