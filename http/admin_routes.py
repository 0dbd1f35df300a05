"""The paths by which operators change what a running server has and computes, and their parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from .openapi import answers
from .route import TAKES_BODY, Route

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


class ProfileOptions(msgspec.Struct):
    """The query of /start_profile."""

    seconds: Annotated[float, msgspec.Meta(gt=0, le=600)] = 60.0


class ServerInfoOptions(msgspec.Struct):
    """The query of /server_info, as vLLM has it."""

    config_format: Literal["text", "json"] = "text"


class CollectiveRpcRequest(msgspec.Struct):
    """The body of /collective_rpc, as vLLM has it."""

    method: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    timeout: Annotated[float, msgspec.Meta(gt=0, le=MOST_WAIT_S)] | None = None


class UpdateWeightsRequest(msgspec.Struct):
    """The body of /update_weights: a folder of the server's machine; without one, the served model's as it is now. The
    second name is SGLang's.
    """

    path: str | None = None
    model_path: str | None = None
    mode: Literal["abort", "wait", "keep"] = "abort"
    max_wait: Annotated[int, msgspec.Meta(ge=1, le=MOST_WAIT_S)] = 300
    update_info: dict[str, Any] | None = None


NO_TRANSFER = (  # of weights from memory to memory, by other servers' names
    *("/init_weights_update_group", "/init_weight_transfer_engine", "/update_weights_from_distributed"),
    *("/update_weights_from_tensor", "/destroy_weights_update_group"),
)
ADMIN = (
    Route(
        "post",
        "/start_profile",
        "administration.start_profile",
        "Sample the stacks of all actors, and the workers' operators",
        answers.Health,
        query=ProfileOptions,
        statuses=(400, 500, 503),
        admin=True,
    ),
    Route(
        "post",
        "/stop_profile",
        "administration.stop_profile",
        "Write what was seen as a trace for Perfetto",
        answers.ProfileWritten,
        statuses=(400, 500, 503),
        admin=True,
    ),
    Route(
        "post",
        "/collective_rpc",
        "administration.collective_rpc",
        "Call a method of all workers by its name",
        answers.Results,
        CollectiveRpcRequest,
        statuses=(*TAKES_BODY, 500, 503),
        admin=True,
    ),
    *(
        Route(
            "post",
            path,
            "administration.update_weights",
            "Compute with the weights of another folder",
            answers.WeightsUpdated,
            UpdateWeightsRequest,
            statuses=(*TAKES_BODY, 500, 503),
            admin=True,
        )
        for path in ("/update_weights", "/update_weights_from_disk")
    ),
    *(Route("post", path, "administration.transfer_weights", admin=True, refuses=True) for path in NO_TRANSFER),
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
