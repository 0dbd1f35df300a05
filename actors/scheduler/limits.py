"""What the options allow a scheduler. Leaf: all of its parts may know it."""

from __future__ import annotations

from dataclasses import dataclass

from ..model.vision.spec import VisionSpec


@dataclass(frozen=True)
class Limits:
    """What the options allow."""

    max_num_seqs: int
    max_queued: int
    max_num_batched_tokens: int
    block_size: int
    prefix_caching: bool
    by_priority: bool
    pools: bool = False  # nothing is generated
    whole_prompts: bool = False  # none can be computed in parts, nor behind a cached prefix: there is no caching then
    drafts: int = 0  # of a row in a step, at most
    drafts_alone: bool = False  # only of one that runs alone, and only where the worker makes some
    max_queued_tokens: int | None = None  # of prompts that wait while all rows are taken
    long_prefill_tokens: int | None = None  # of one prompt, that a step computes
    target_itl_s: float | None = None  # between two tokens of a stream
    vision: VisionSpec | None = None  # of a model that sees pictures
    stages: int = 1  # of the workers' pipeline
    members: int = 1  # of a stage, who compute each step together
    max_num_encoder_input_tokens: int | None = None  # whose embeddings one step may make; None: as many as a step has
