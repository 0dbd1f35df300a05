"""What is computed at once, and who waits."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..choices import NonNegative, Policy, Positive, PositiveFloat
from .kv_cache import KVOptions


class BatchOptions(KVOptions, frozen=True, kw_only=True):
    """How many tokens and sequences a step has, and who waits."""

    max_num_batched_tokens: Annotated[int, Meta(ge=1, description="the token budget of one step")] = 1024
    max_num_encoder_input_tokens: Annotated[
        Positive | None,
        Meta(
            description="tokens of pictures that one step may make embeddings of, or of a part of one; without it "
            "as many as --max-num-batched-tokens, and no more than leave streams their time"
        ),
    ] = None
    encoder_cache_gb: Annotated[
        float,
        Meta(gt=0, le=1 << 20, description="GiB of pictures' embeddings that a worker keeps, the last used longest"),
    ] = 0.5
    target_itl_ms: Annotated[
        PositiveFloat | None,
        Meta(description="milliseconds between two tokens of a stream; prompts get as much of each step as leaves it"),
    ] = None
    max_num_seqs: Annotated[int, Meta(ge=1, le=4096, description="sequences that run at once")] = 64
    max_num_queued_reqs: Annotated[
        NonNegative | None,
        Meta(description="sequences that wait before 503 is answered; 2048, or what 512 MiB of request table hold"),
    ] = None
    max_num_queued_tokens: Annotated[
        Positive | None,
        Meta(description="tokens of prompts that wait of one engine, with all rows taken, before 503 is answered"),
    ] = None
    long_prefill_token_threshold: Annotated[
        Positive | None, Meta(description="tokens of one prompt that a step computes, so that others come in between")
    ] = None
    scheduling_policy: Annotated[Policy, Meta(description="priority runs lower numbers first")] = "fcfs"
