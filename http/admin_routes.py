"""The paths by which operators change what a running server has and computes, and their parameters."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from .openapi import answers
from .route import Route

MOST_WAIT_S = 86_400


class SleepOptions(msgspec.Struct):
    """The query of /sleep; the first two as vLLM has them."""

    level: Literal[1, 2] = 1
    mode: Literal["abort", "wait", "keep"] = "abort"
    new_requests: Literal["wait", "refuse"] = "wait"
    max_wait: Annotated[int, msgspec.Meta(ge=1, le=MOST_WAIT_S)] = 300


class WakeOptions(msgspec.Struct):
    """The query of /wake_up, as vLLM has it: `weights`, `kv_cache`, or both, divided by commas or as two parameters."""

    tags: str | None = None


ADMIN = (
    Route(
        "post",
        "/sleep",
        "administration.sleep",
        "Give weights and KV memory back until /wake_up",
        answers.Slept,
        query=SleepOptions,
        statuses=(400, 500, 503),
        admin=True,
    ),
    Route(
        "post",
        "/wake_up",
        "administration.wake_up",
        "Have them again",
        answers.Slept,
        query=WakeOptions,
        statuses=(400, 500, 503),
        admin=True,
    ),
    Route("get", "/is_sleeping", "administration.is_sleeping", "Does it sleep?", answers.IsSleeping, admin=True),
)
