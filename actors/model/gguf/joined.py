"""Tensors of the hub that GGUF files have in several parts: which these are, and the shape of the whole.

Parts go by names that the hub would have for them. How their numbers come together: worker/models/gguf_changes.py.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator
from typing import NamedTuple

Shape = tuple[int, ...]


class How(enum.Enum):
    """What becomes of the parts."""

    ROWS = "rows"  # one after the other; of tensors of experts, of each
    KEY_HEADS = "key heads"  # of linear attention: of each head of keys what makes its q, k, v and gates
    HEADS = "heads"  # of each head what makes its k, as [latent, k], and then what makes its v, as [v, latent]


class JoinedTensors(NamedTuple):
    """One kind of tensor, by the ends of names."""

    whole: str
    parts: tuple[str, str]
    how: How

    def shape(self, first: Shape, second: Shape) -> Shape | None:
        """Of the whole; None: they do not belong together."""
        if self.how is How.HEADS:
            if len(first) != 3 or len(second) != 3 or (first[0], first[1]) != (second[0], second[2]):
                return None
            return first[0] * (first[2] + second[1]), first[1]
        if len(first) != len(second) or len(first) < 2 or (first[:-2], first[-1]) != (second[:-2], second[-1]):
            return None
        return *first[:-2], first[-2] + second[-2], first[-1]


LATENT = JoinedTensors(
    "self_attn.kv_b_proj.weight", ("self_attn.k_b_proj.weight", "self_attn.v_b_proj.weight"), How.HEADS
)
GATED = tuple(
    JoinedTensors(f"{mlp}.input_linear.weight", (f"{mlp}.gate_linear.weight", f"{mlp}.up_linear.weight"), How.ROWS)
    for mlp in ("block_sparse_moe", "shared_mlp")
)
GATED_VALUES = JoinedTensors(
    "linear_attn.in_proj_qkvz.weight",
    ("linear_attn.in_proj_qkv.weight", "linear_attn.in_proj_z.weight"),
    How.KEY_HEADS,
)
JOINED: dict[str, tuple[JoinedTensors, ...]] = {
    **dict.fromkeys(("deepseek2", "deepseek32", "glm-dsa", "mistral4"), (LATENT,)),
    "granitehybrid": GATED,
    "granitemoe": GATED,
    "kimi-linear": (LATENT,),
    "qwen3next": (GATED_VALUES,),
}


def joined_names(architecture: str, names: Iterable[str]) -> Iterator[tuple[str, tuple[str, str], JoinedTensors]]:
    """Of tensors by the hub's names: each that is a whole of two of them, these two, and how they come together."""
    there = set(names)
    for kind in JOINED.get(architecture, ()):
        for first in sorted(name for name in there if name.endswith(f".{kind.parts[0]}")):
            prefix = first.removesuffix(kind.parts[0])
            if (second := prefix + kind.parts[1]) in there:
                yield prefix + kind.whole, (first, second), kind
