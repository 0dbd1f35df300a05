"""What SGLang has beside the paths of answers: its operators', those that read a text, some with /v1 before them."""

from __future__ import annotations

from dataclasses import replace

from ...generation.adapters import LoadAdapterRequest, UnloadAdapterRequest
from ...openapi import operations, sglang
from ...route import TAKES_BODY, Route
from ...sglang.schemas import MemoryRequest, ParseCallsRequest, PauseRequest, SeparateReasoningRequest
from ..administration import ResetOptions
from ..completions import COMPLETIONS
from ..pooling import POOLING

FAILS = (*TAKES_BODY, 500, 503)
VERSIONED = ("tokenize", "detokenize", "classify")

SGLANG_OPERATIONS: tuple[Route, ...] = (
    *(
        replace(route, path=f"/v1{route.path}", listed=False)
        for route in (*COMPLETIONS, *POOLING)
        if route.path[1:] in VERSIONED
    ),
    *(
        Route(
            method,
            "/flush_cache",
            "operations.reset_prefix_cache",
            "Find no prefix again that was computed before",
            operations.Health,
            query=ResetOptions,
            statuses=FAILS,
            admin=True,
            head=False,
        )
        for method in ("get", "post")
    ),
    Route(
        "post",
        "/pause_generation",
        "sglang_operations.pause",
        "Compute nothing until /continue_generation",
        sglang.SglangPaused,
        PauseRequest,
        statuses=FAILS,
        admin=True,
    ),
    Route(
        "post",
        "/continue_generation",
        "sglang_operations.go_on",
        "Compute again",
        sglang.SglangPaused,
        statuses=(500, 503),
        admin=True,
    ),
    Route(
        "post",
        "/release_memory_occupation",
        "sglang_operations.release_memory",
        "Give weights and KV memory back",
        operations.Resting,
        MemoryRequest,
        statuses=FAILS,
        admin=True,
    ),
    Route(
        "post",
        "/resume_memory_occupation",
        "sglang_operations.resume_memory",
        "Have them again",
        operations.Resting,
        MemoryRequest,
        statuses=FAILS,
        admin=True,
    ),
    Route(
        "post",
        "/load_lora_adapter",
        "sglang_operations.load_adapter",
        "Let requests have an adapter by its name",
        sglang.SglangAdapters,
        LoadAdapterRequest,
        statuses=FAILS,
        admin=True,
    ),
    Route(
        "post",
        "/unload_lora_adapter",
        "sglang_operations.unload_adapter",
        "Let no new request have it",
        sglang.SglangAdapters,
        UnloadAdapterRequest,
        statuses=(*FAILS, 404),
        admin=True,
    ),
    Route(
        "post",
        "/parse_function_call",
        "sglang_operations.parse_calls",
        "The tool calls in a text",
        sglang.SglangCalls,
        ParseCallsRequest,
        statuses=TAKES_BODY,
    ),
    Route(
        "post",
        "/separate_reasoning",
        "sglang_operations.separate_reasoning",
        "The reasoning in a text, and what is not",
        sglang.SglangReasoning,
        SeparateReasoningRequest,
        statuses=TAKES_BODY,
    ),
)
