"""How positions turn queries and keys, read from config.json. The angles themselves: worker/models/rope.py."""

from __future__ import annotations

import math
from collections.abc import Mapping

import msgspec

from ..options.config import ConfigError
from .values import Unsupported, Values

FARTHEST = 1e15  # of a number of the rotation
NUMBERS = {  # the kinds of rotation that are supported, and the numbers that each needs
    "default": (),
    "linear": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"),
    "longrope": (),  # it has lists of numbers, and two that may be left out
    "yarn": ("factor", "original_max_position_embeddings"),  # and some that may be left out
}
BETAS = {"beta_fast": 32.0, "beta_slow": 1.0}  # turns within the original length, of yarn


class LongRope(msgspec.Struct, frozen=True):
    """Stretches the angle of each pair of numbers by a factor of its own: one for short texts, one for long ones."""

    short_factors: tuple[float, ...]
    long_factors: tuple[float, ...]
    original_length: float  # the longest that is short
    attention_factor: float  # queries and keys become so much longer, whatever the text's length is

    def factors(self, length: int) -> tuple[float, ...]:
        """Those for texts of up to `length` tokens.

        A server has one length for all texts: keys in the cache were turned by what held when they were computed, and
        are found again by longer texts. Short texts are then turned as the start of a long one is.
        """
        return self.long_factors if length > self.original_length else self.short_factors


class Growth(msgspec.Struct, frozen=True):
    """Queries at position p are multiplied with 1 + scale · ln(1 + ⌊(p + first) / floor⌋)."""

    scale: float
    floor: float
    first: int = 1  # what the first position counts as
    turning: bool = False  # those of layers that turn; else of the others

    @property
    def start(self) -> float:
        """The position from which on they are longer."""
        return self.floor - self.first


class Rope(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of rotation with its numbers."""

    kind: str = "default"
    theta: float = 10_000.0
    numbers: dict[str, float] = {}
    rotary_dim: int | None = None  # the first numbers of a head, which turn; None: all
    long: LongRope | None = None
    interleaved: bool = False  # numbers 2i and 2i + 1 turn together in the checkpoint, not i and i + half

    @property
    def attention_factor(self) -> float:
        """Queries and keys become so much longer."""
        return self.numbers.get("attention_factor", 1.0) if self.long is None else self.long.attention_factor


def read_rope(given: Values, names: Mapping[str, str], head_dim: int, partial: bool, interleaved: bool = False) -> Rope:
    """`rope_parameters` as transformers 5 writes it, or `rope_theta` and `rope_scaling` as older versions do.

    `names`: the rope types that the family has, and which kind each is; `partial`: may some of a head's numbers stay?
    """
    rope = given.object("rope_scaling") or given.object("rope_parameters") or Values(given.file, {})
    theta = rope.real("rope_theta", 0, FARTHEST) or given.real("rope_theta", 0, FARTHEST) or 10_000.0
    name = rope.text("rope_type") or rope.text("type") or "default"
    if name not in names:
        raise Unsupported(f"model: the rope type {name} is not supported; these are: {', '.join(names)} ({rope.file})")
    if name == "dynamic" and rope["alpha"] is not None:
        raise Unsupported(
            f"model: the rope type dynamic with alpha, which turns all texts, is not supported ({rope.file})"
        )
    kind, rotary_dim = names[name], _rotary_dim(rope, given, head_dim, partial)
    long = _long_rope(rope, given, (rotary_dim or head_dim) // 2) if kind == "longrope" else None
    numbers = _numbers(kind, rope, given) | (_yarn(rope) if kind == "yarn" else {})
    return Rope(kind=kind, theta=theta, numbers=numbers, rotary_dim=rotary_dim, long=long, interleaved=interleaved)


def long_texts(rope: Rope, length: int) -> str:
    """What to say of a model that is served for longer texts than it was first made for; nothing if it is not."""
    if rope.long is None or length <= rope.long.original_length:
        return ""
    original = int(rope.long.original_length)
    return (
        f"longrope: --max-model-len {length} is more than {original}, so all texts are rotated by long_factor, as "
        f"transformers rotates texts that long; with --max-model-len {original} all are rotated by short_factor"
    )


def _rotary_dim(rope: Values, given: Values, head_dim: int, partial: bool) -> int | None:
    """The numbers of a head that `partial_rotary_factor` lets turn."""
    for holder in (rope, given):
        factor = holder.real("partial_rotary_factor", 0, 1)
        if not factor:
            continue
        if factor == 1:
            return None
        if not partial:
            raise Unsupported(f"model: a partial_rotary_factor other than 1 is not supported ({holder.file})")
        dim = int(head_dim * factor)
        if dim % 2 or not dim:
            raise holder.wrong("partial_rotary_factor", f"one that turns an even number of a head's {head_dim}")
        return dim
    return None


def _long_rope(rope: Values, given: Values, pairs: int) -> LongRope:
    """transformers takes the original length beside the rope's object before the one in it."""
    key = "original_max_position_embeddings"
    original = given.real(key, 1, FARTHEST) or rope.real(key, 1, FARTHEST)
    longest = given.real("max_position_embeddings", 1, FARTHEST)
    if original is None or longest is None:
        raise ConfigError(f"model: the rope type longrope needs {key} and max_position_embeddings ({given.file})")
    factor = rope.real("factor", 0, FARTHEST, above=True) or longest / original
    attention = rope.real("attention_factor", 0, FARTHEST, above=True)
    if attention is None and factor > 1 and original == 1:
        raise given.wrong(key, "more than 1, or an attention_factor beside it,")
    if attention is None:
        attention = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = (rope.reals(name, pairs, FARTHEST) for name in ("short_factor", "long_factor"))
    return LongRope(short, long, original, attention)


def _yarn(rope: Values) -> dict[str, float]:
    """What may be left out."""
    found = {name: rope.real(name, 0, FARTHEST, above=True) or absent for name, absent in BETAS.items()}
    if found["beta_fast"] < found["beta_slow"]:
        raise rope.wrong("beta_fast", f"at least beta_slow, {found['beta_slow']:g},")
    found["truncate"] = 1.0 if rope["truncate"] is None else float(rope.flag("truncate"))
    factor = rope.real("factor", 0, FARTHEST, above=True) or 1.0
    own, whole = (rope.real(name, 0, FARTHEST) for name in ("mscale", "mscale_all_dim"))

    def longer(by: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * by * math.log(factor) + 1.0

    given, times = rope.real("attention_factor", 0, FARTHEST), rope.real("attn_factor", 0, FARTHEST) or 1.0
    computed = longer(own) / longer(whole) if own and whole else longer(1.0)
    # DeepSeek-R1-0528-Qwen3-8B's attn_factor takes back what yarn's own adds, and vLLM multiplies with it as well;
    # transformers does not read it.
    return {**found, "attention_factor": computed * times if given is None else given}


def _numbers(kind: str, rope: Values, given: Values) -> dict[str, float]:
    numbers = {key: rope.real(key, 0, FARTHEST, above=True) for key in NUMBERS[kind]}
    if "original_max_position_embeddings" in numbers and numbers["original_max_position_embeddings"] is None:
        numbers["original_max_position_embeddings"] = given.real("max_position_embeddings", 0, FARTHEST, above=True)
    known = {key: number for key, number in numbers.items() if number is not None}
    if missing := [key for key in numbers if key not in known]:
        raise ConfigError(f"model: the rope type {kind} needs {', '.join(missing)}, and {rope.file} has none")
    if kind == "llama3" and known["low_freq_factor"] > known["high_freq_factor"]:
        raise rope.wrong("low_freq_factor", f"at most high_freq_factor, {known['high_freq_factor']:g},")
    return known
