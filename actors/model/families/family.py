"""What the models of one family share; the rest stands in a model's config.json."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from ..layers import LayerSpec
from ..shapes import MoeShape
from ..values import Values

Windows = tuple[int | None, ...]  # by layer: how many tokens back it sees, itself included; None: all
ROPES = {
    **{kind: kind for kind in ("default", "linear", "llama3", "longrope", "yarn")},
    "dynamic": "default",  # it turns otherwise only beyond max_position_embeddings, which no text is
}
LAYER_TYPES = ("full_attention", "sliding_attention")


def no_windows(given: Values, layers: int) -> Windows:
    """All layers see all tokens."""
    return (None,) * layers


def same_windows(given: Values, layers: int) -> Windows:
    """`sliding_window` holds in all layers, where there is one."""
    return (given.whole("sliding_window"),) * layers


def no_experts(given: Values, layers: int) -> MoeShape | None:
    """All layers have one MLP."""
    return None


def typed_windows(every: int) -> Callable[[Values, int], Windows]:
    """`sliding_window` in the layers that `layer_types` names; where it is missing, all but each `every`-th."""

    def windows(given: Values, layers: int) -> Windows:
        window, kinds = given.whole("sliding_window"), given["layer_types"]
        if kinds is None:
            kinds = [LAYER_TYPES[(layer + 1) % every != 0] for layer in range(layers)]
        check_layer_types(given, kinds, layers)
        return tuple(window if kind == LAYER_TYPES[1] else None for kind in kinds)

    return windows


def check_layer_types(given: Values, kinds: object, layers: int) -> None:
    """ConfigError unless `layer_types` names a kind for each layer."""
    if not isinstance(kinds, list) or len(kinds) != layers or any(kind not in LAYER_TYPES for kind in kinds):
        raise given.wrong("layer_types", f"a list of {layers} times {' or '.join(LAYER_TYPES)}")


def ropes_by_type(local: Callable[[Values], dict[str, Any]]) -> Callable[[Values, Windows], list[Values | None]]:
    """Layers with windows turn otherwise than those without: as `rope_parameters` says of each kind of layers, or, as
    older versions of transformers wrote it, `rope_scaling` is of those without alone, and `local` makes the others'. So
    does vLLM read `rope_parameters` that are not by kind, but for the base, which all layers have."""

    def ropes(given: Values, windows: Windows) -> list[Values | None]:
        nested = given.object("rope_parameters")
        plain = {"rope_scaling": None, **local(given)}
        if nested is not None and not any(kind in nested.values for kind in LAYER_TYPES):
            base = nested["rope_theta"] or given["rope_theta"]
            plain = {"rope_parameters": None, "rope_theta": base, **plain}
        kinds = []
        for kind, older in zip(LAYER_TYPES, ({}, plain), strict=True):
            own = None if nested is None else nested.object(kind)
            changed = older if own is None else {"rope_parameters": own.values, "rope_scaling": None}
            kinds.append(Values(given.file, {**given.values, **changed}))
        return [kinds[window is not None] for window in windows]

    return ropes


def same_ropes(given: Values, windows: Windows) -> list[Values | None]:
    """All layers turn alike."""
    return [given] * len(windows)


def nothing_more(given: Values) -> dict[str, Any]:
    """No field of Architecture but those that all families have."""
    return {}


class Family(msgspec.Struct, frozen=True, kw_only=True):
    """A family of architectures: pure data, and rules for what its config.json says in its own way."""

    architectures: tuple[str, ...]  # as in config.json
    layer: LayerSpec
    absent: Mapping[str, Any] = {}  # what transformers takes where config.json lacks the field
    windows: Callable[[Values, int], Windows] = no_windows
    moe: Callable[[Values, int], MoeShape | None] = no_experts
    ropes: Mapping[str, str] = msgspec.field(default_factory=lambda: ROPES)  # config.json's types, each with its kind
    beside: tuple[str, ...] = ()  # what names of tensors begin with that the model itself has no use for
    names: tuple[tuple[str, str], ...] = ()  # what names of tensors begin with in the checkpoint, and here
    partial_rotary: bool = False  # may `partial_rotary_factor` leave numbers of a head as they are?
    interleaved: bool = False  # do numbers 2i and 2i + 1 of a head turn together?
    ropes_of: Callable[[Values, Windows], Sequence[Values | None]] = same_ropes  # what to read each layer's from
    activation: str = "hidden_act"  # the field
    more: Callable[[Values], dict[str, Any]] = nothing_more  # further fields of Architecture
