"""What the models of one family share; the rest stands in a model's config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from ..layers import LayerSpec
from ..moe import MoeShape
from ..values import Values

Windows = tuple[int | None, ...]  # by layer: how many tokens back it sees, itself included; None: all
ROPES = {"default": "default", "linear": "linear", "llama3": "llama3", "longrope": "longrope"}


def no_windows(given: Values, layers: int) -> Windows:
    """All layers see all tokens."""
    return (None,) * layers


def same_windows(given: Values, layers: int) -> Windows:
    """`sliding_window` holds in all layers, where there is one."""
    return (given.whole("sliding_window"),) * layers


def no_experts(given: Values, layers: int) -> MoeShape | None:
    """All layers have one MLP."""
    return None


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family of architectures: pure data, and rules for windows and experts."""

    architectures: tuple[str, ...]  # as in config.json
    layer: LayerSpec
    absent: Mapping[str, Any] = {}  # what transformers takes where config.json lacks the field
    windows: Callable[[Values, int], Windows] = no_windows
    moe: Callable[[Values, int], MoeShape | None] = no_experts
    ropes: Mapping[str, str] = msgspec.field(default_factory=lambda: ROPES)  # config.json's types, each with its kind
    beside: tuple[str, ...] = ()  # what names of tensors begin with that the model itself has no use for
    partial_rotary: bool = False  # may `partial_rotary_factor` leave numbers of a head as they are?
