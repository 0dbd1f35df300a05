"""Pipeline parallelism: which layers each stage of a model has, and how its KV memory is planned. Knows no torch.

The first stage has the embeddings, the last one the final norm and what makes logits; layers are divided so that the
stage with most weights to multiply with has as few as can be. A stage is an architecture like any other whose layers
begin further on (`first_layer`), so that all who read one need not know of stages.

KV memory: all stages have the same blocks, each for its own layers, so that one block table holds for all. There are as
many as one worker with the whole model would have of that memory. Layers that see a window have block tables of their
own only where each stage has as many of these (memory/kv_memory.py); otherwise they keep everything, as all others do.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import NamedTuple

import msgspec

from ...options.config import Config, ConfigError
from ..architecture import Architecture
from ..layers import EMBEDDINGS, FINAL_NORM
from ..memory.kv import KVSpec, KVType
from ..memory.kv_memory import KVMemory, plan_kv_memory
from ..sharding import shard_shape


class StagePlans(NamedTuple):
    """KV memory of a pipeline."""

    each: list[KVMemory]
    whole: KVMemory  # what a block takes in all of them
    may_free: bool  # what is behind a window is let go of


def stage_shapes(shape: Architecture, stages: int) -> list[Architecture]:
    """The part of each stage; ConfigError if there are fewer layers."""
    if stages == 1:
        return [shape]
    if shape.layers < stages:
        raise ConfigError(
            f"--pipeline-parallel-size: the model has {shape.layers} layers, of which each stage needs one; set it to "
            f"at most {shape.layers}"
        )
    ends = divide(layer_weights(shape), prod((shape.vocab_size, shape.hidden_size)), stages)
    if shape.latent is not None and shape.latent.index is not None:
        raise ConfigError(
            "--pipeline-parallel-size: queries of the model see what an indexer chooses, for several layers; "
            "--tensor-parallel-size divides it"
        )
    return [_part(shape, first, end) for first, end in zip([0, *ends], ends, strict=False)]


def worker_shapes(config: Config, shape: Architecture) -> list[Architecture]:
    """Of each stage, what one of its workers has of it."""
    size, experts = config.tensor_parallel_size, config.enable_expert_parallel
    return [shard_shape(part, size, experts) for part in stage_shapes(shape, config.pipeline_parallel_size)]


def left_out(stages: Sequence[Architecture], index: int) -> set[str]:
    """The modules that only another stage has."""
    head = stages[index].head.name
    ends = {EMBEDDINGS} if index == 0 else set()
    return {EMBEDDINGS, FINAL_NORM, head} - (ends | {FINAL_NORM, head} if index == len(stages) - 1 else ends)


def layer_weights(shape: Architecture) -> list[int]:
    """How many weights each layer has."""
    return [
        sum(prod(shape.tensor_shape(spec)) for spec in shape.layer_at(layer).tensors().values())
        for layer in range(shape.layers)
    ]


def divide(layers: Sequence[int], head: int, stages: int) -> list[int]:
    """The end of each stage, so that the largest is as small as can be; the last one has the `head`, too."""
    low, high = max(layers), sum(layers) + head
    while low < high:
        middle = (low + high) // 2
        if _ends(layers, head, stages, middle) is None:
            low = middle + 1
        else:
            high = middle
    ends = _ends(layers, head, stages, low)
    assert ends is not None
    return ends


def _ends(layers: Sequence[int], head: int, stages: int, most: int) -> list[int] | None:
    """Each stage has as many as fit into `most`, and leaves one for each behind it; None if the last has more."""
    ends, at = [], 0
    for stage in range(stages - 1):
        size, behind = 0, stages - 1 - stage
        while at < len(layers) - behind and (not size or size + layers[at] <= most):
            size += layers[at]
            at += 1
        ends.append(at)
    return [*ends, len(layers)] if sum(layers[at:]) + head <= most else None


def _part(shape: Architecture, first: int, end: int) -> Architecture:
    moe = shape.moe
    return msgspec.structs.replace(
        shape,
        first_layer=shape.first_layer + first,
        windows=shape.windows[first:end],
        ropes=None if shape.ropes is None else shape.ropes[first:end],
        chunks=shape.chunks[first:end],
        moe=None if moe is None else msgspec.structs.replace(moe, layers=moe.layers[first:end]),
    )


def plan_stages(
    parts: Sequence[KVSpec],
    config: Config,
    max_length: int,
    itemsize: int,
    beside: int = 0,
    may_free: bool = True,
    kind: KVType | None = None,
) -> StagePlans:
    """Of a model in these parts; the rest as of plan_kv_memory."""

    def plan(free: bool) -> list[KVMemory]:
        return [plan_kv_memory(kv, config, max_length, itemsize, beside, free, kind) for kv in parts]

    plans = plan(may_free)
    tables = {plan.windows and (len(plan.windows.tables), plan.windows.window) for plan in plans}
    if len(tables) > 1:
        plans, may_free = plan(False), False
    size, row = sum(plan.block_bytes for plan in plans), sum(plan.row_bytes for plan in plans)
    return StagePlans(plans, plans[0]._replace(block_bytes=size, row_bytes=row), may_free)
