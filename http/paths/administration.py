"""The paths by which operators change what a running server has and computes, and their parameters."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec

from ..generation.adapters import LoadAdapterRequest, UnloadAdapterRequest
from ..openapi import operations as answers
from ..route import TAKES_BODY, Route

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


class LoadsQuery(msgspec.Struct):
    """The query of /v1/loads, as SGLang has it. `include`: sections, with commas between them."""

    dp_rank: int | None = None
    include: str | None = None
    format: Literal["json", "prometheus"] = "json"


class WorldSizeOptions(msgspec.Struct):
    """The query of /get_world_size, as vLLM has it."""

    include_dp: bool = True


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


class ResetOptions(msgspec.Struct):
    """The query of /reset_prefix_cache, as vLLM has it, and by the name that its LLM has for the last."""

    reset_running_requests: bool = False
    reset_external: bool = False  # what --kv-offload keeps is dropped in any case
    reset_connector: bool = False  # the same, by LLM's name of it


class PauseOptions(msgspec.Struct):
    """The query of /pause, as vLLM has it; the last stands for mode=wait."""

    mode: Literal["abort", "wait", "keep"] = "abort"
    clear_cache: bool = True
    wait_for_inflight_requests: bool = False


class AbortRequests(msgspec.Struct):
    """The body of /abort_requests, and of SGLang's /abort_request, which has `rid`."""

    request_ids: list[str] = []
    rid: str | None = None
    abort_all: bool = False


NO_TRANSFER = (  # of weights from memory to memory, by other servers' names
    *("/init_weights_update_group", "/init_weight_transfer_engine", "/update_weights_from_distributed"),
    *("/update_weights_from_tensor", "/destroy_weights_update_group", "/shutdown_weight_transfer_engine"),
    *("/start_weight_update", "/start_draft_weight_update", "/finish_weight_update"),
)
ADMINISTRATION: tuple[Route, ...] = (
    Route(
        "post",
        "/reset_prefix_cache",
        "operations.reset_prefix_cache",
        "Find no prefix again that was computed before",
        answers.Health,
        query=ResetOptions,
        statuses=(*TAKES_BODY, 500, 503),
        admin=True,
    ),
    Route(
        "post",
        "/reset_mm_cache",
        "operations.reset_mm_cache",
        "Process pictures and sounds anew",
        answers.Health,
        statuses=(500, 503),
        admin=True,
    ),
    *(
        Route(
            "post",
            path,
            "adapters.load",
            "Let requests have an adapter by its name",
            request=LoadAdapterRequest,
            statuses=(*TAKES_BODY, 500, 503),
            admin=True,
        )
        for path in ("/v1/load_lora_adapter", "/v1/lora/load")
    ),
    *(
        Route(
            "post",
            path,
            "adapters.unload",
            "Let no new request have it",
            request=UnloadAdapterRequest,
            statuses=(*TAKES_BODY, 404, 500, 503),
            admin=True,
        )
        for path in ("/v1/unload_lora_adapter", "/v1/lora/unload")
    ),
    Route(
        "post",
        "/reset_encoder_cache",
        "operations.reset_encoder_cache",
        "Make embeddings of pictures anew",
        answers.Health,
        statuses=(500, 503),
        admin=True,
    ),
    Route(
        "post",
        "/pause",
        "operations.pause",
        "Compute nothing until /resume",
        answers.Paused,
        query=PauseOptions,
        statuses=(400, 500, 503),
        admin=True,
    ),
    Route("post", "/resume", "operations.resume", "Compute again", answers.Paused, statuses=(500, 503), admin=True),
    Route("get", "/is_paused", "operations.is_paused", "Does it compute nothing?", answers.IsPaused, admin=True),
    Route(
        "post",
        "/abort_requests",
        "operations.abort_requests",
        "End requests by their ids, or all",
        answers.Aborted,
        AbortRequests,
        statuses=(*TAKES_BODY, 500, 503),
        admin=True,
    ),
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
        "get",
        "/get_world_size",
        "administration.world_size",
        "How many workers there are",
        answers.WorldSize,
        query=WorldSizeOptions,
        statuses=(400,),
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
        answers.Woken,
        query=WakeOptions,
        statuses=(400, 500, 503),
        admin=True,
    ),
    Route("get", "/is_sleeping", "administration.is_sleeping", "Does it sleep?", answers.IsSleeping, admin=True),
)
