"""What a member of a group has of a model: seen on one of full size without weights, before any is read."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from ....model.memory.kv import KVSpec
from ..hollow import hollow
from ..hooks import Unfit
from ..probe import Traits
from .cuts import CUTS, Cut, Division


def part_of(make: Callable[..., Any], size: int, look: Callable[[nn.Module], Traits]) -> tuple[Traits, nn.Module]:
    """The part of one of `size`, by shapes. Unfit says why the model cannot be divided so."""
    division = Division(0, size)
    cuts: dict[str, Cut] = {}

    def cut() -> Any:
        model = make()
        cuts.update(division.cuts(model))
        division.take_all(model, cuts)
        return model

    whole = look(hollow(make))
    shell = hollow(cut)
    _check_heads(whole, cuts, size)
    division.join(shell, cuts)
    traits = look(shell)
    _check_parts(whole.kv, traits.kv, size)
    return traits, shell


def _check_heads(whole: Traits, cuts: dict[str, Cut], size: int) -> None:
    """Unfit if heads of a whole model would be cut in two, or it keeps what is not divided here."""
    if whole.stateful:
        raise Unfit("keeps states of rows, which are not divided")
    if whole.gathered:
        raise Unfit("attends by latents, which are divided in this server's own layers only")
    if CUTS["colwise"] not in cuts.values():
        return
    for layer in filter(None, whole.kv.layers):
        for name, number in (("attention heads", layer.heads), ("KV heads", layer.kv_heads)):
            if number % size:
                raise Unfit(f"has {number} {name}, which {size} does not divide")


def _check_parts(whole: KVSpec, own: KVSpec, size: int) -> None:
    """Unfit if this member's part of a model does not have its part of the heads, or all of them."""
    for before, after in zip(whole.layers, own.layers, strict=True):
        if before is None or after is None:
            continue
        counts = (before.heads, before.kv_heads), (after.heads, after.kv_heads)
        if counts[0] not in (counts[1], tuple(size * count for count in counts[1])):
            raise Unfit(f"has {counts[0]} heads, and divided {counts[1]}")
