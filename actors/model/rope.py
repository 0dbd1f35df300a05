"""How positions turn queries and keys, read from config.json. The angles themselves: worker/models/rope.py."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from ..options.config import ConfigError
from .values import Values

FARTHEST = 1e15  # of a number of the rotation
NUMBERS = {  # the kinds of rotation that are supported, and the numbers that each needs
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
}


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of rotation with its numbers."""

    kind: str = "default"
    theta: float = 10_000.0
    numbers: dict[str, float] = {}


def read_rope(given: Values, names: Mapping[str, str]) -> Rope:
    """`rope_parameters` as transformers 5 writes it, or `rope_theta` and `rope_scaling` as older versions do.

    `names`: the rope types that the family has, and which kind each is.
    """
    rope = given.object("rope_scaling") or given.object("rope_parameters") or Values(given.file, {})
    theta = rope.real("rope_theta", 0, FARTHEST) or given.real("rope_theta", 0, FARTHEST) or 10_000.0
    name = rope.text("rope_type") or rope.text("type") or "default"
    if name not in names:
        raise ConfigError(f"model: the rope type {name} is not supported; these are: {', '.join(names)} ({rope.file})")
    for holder in (rope, given):
        if holder.real("partial_rotary_factor", 0, 1) not in (None, 0.0, 1.0):
            raise ConfigError(f"model: a partial_rotary_factor other than 1 is not supported ({holder.file})")
    kind = names[name]
    return Rope(kind=kind, theta=theta, numbers=_numbers(kind, rope, given))


def _numbers(kind: str, rope: Values, given: Values) -> dict[str, float]:
    numbers = {key: rope.real(key, 0, FARTHEST, above=True) for key in NUMBERS[kind]}
    if "original_max_position_embeddings" in numbers and numbers["original_max_position_embeddings"] is None:
        numbers["original_max_position_embeddings"] = given.real("max_position_embeddings", 0, FARTHEST, above=True)
    known = {key: number for key, number in numbers.items() if number is not None}
    if missing := [key for key in numbers if key not in known]:
        raise ConfigError(f"model: the rope type {kind} needs {', '.join(missing)}, and {rope.file} has none")
    if kind == "llama3" and known["low_freq_factor"] >= known["high_freq_factor"]:
        raise rope.wrong("low_freq_factor", f"less than high_freq_factor, {known['high_freq_factor']:g},")
    return known
