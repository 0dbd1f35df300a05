"""The shape of the part of a model that one worker of several has."""

from __future__ import annotations

import msgspec

from ..options.config import ConfigError
from .architecture import Architecture
from .shapes import MoeShape


def shard_shape(shape: Architecture, size: int, expert_parallel: bool = False) -> Architecture:
    """The shape of the part that one of `size` workers has. ConfigError if the model cannot be cut into so many.

    `expert_parallel`: each has some of the experts as a whole, and not a part of each.
    """
    numbers = {"attention heads": shape.heads, "numbers in its MLP": shape.intermediate_size}
    moe = shape.moe
    if moe is not None:
        numbers["numbers in its shared MLP"] = moe.shared_intermediate_size
        numbers |= {"experts": moe.experts} if expert_parallel else {"numbers in an expert": moe.intermediate_size}
    elif expert_parallel:
        raise ConfigError("--enable-expert-parallel: the model has no experts; leave the option out")
    if expert_parallel and size == 1:
        raise ConfigError(
            "--enable-expert-parallel: experts are divided over the workers of --tensor-parallel-size, and that is 1; "
            "set it to 2 or more, or leave the option out"
        )
    for name, number in numbers.items():
        if number % size:
            raise ConfigError(f"--tensor-parallel-size: the model has {number} {name}, which {size} does not divide")
    if shape.layer.joint_norms and size > 1:
        raise ConfigError("--tensor-parallel-size: the model norms all of its heads together, which must be 1 worker's")
    if max(shape.kv_heads, size) % min(shape.kv_heads, size):
        raise ConfigError(f"--tensor-parallel-size: {shape.kv_heads} KV heads cannot be shared by {size}")
    return msgspec.structs.replace(
        shape,
        heads=shape.heads // size,
        kv_heads=max(1, shape.kv_heads // size),
        intermediate_size=shape.intermediate_size // size,
        moe=None if moe is None else shard_experts(moe, size, expert_parallel),
    )


def shard_experts(moe: MoeShape, size: int, expert_parallel: bool) -> MoeShape:
    """The part of them that one of `size` workers has."""
    return msgspec.structs.replace(
        moe,
        experts=moe.experts // size if expert_parallel else moe.experts,
        intermediate_size=moe.intermediate_size if expert_parallel else moe.intermediate_size // size,
        shared_intermediate_size=moe.shared_intermediate_size // size,
    )
