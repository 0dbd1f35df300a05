"""The paths of llama.cpp's server that no other API has; /tokenize and /detokenize take its bodies, too."""

from __future__ import annotations

from ...llamacpp.schemas import (
    LlamaCompletionRequest,
    LlamaEmbeddingRequest,
    LlamaInfillRequest,
    LlamaModel,
    LlamaSlotsQuery,
)
from ...openai.schemas import ModelQuery
from ...openai.tokenization import TokenizeRequest
from ...openapi import llamacpp as answers
from ...route import ASKS, MODEL, TAKES_BODY, TEXT, Route

LLAMACPP: tuple[Route, ...] = (
    *(
        Route(
            "post",
            path,
            handler,
            summary,
            answers.LlamaPart,
            request,
            answers.LlamaPart,
            generates=TEXT,
            ends="",
            statuses=ASKS,
            error=answers.LlamaError,
            repeatable=True,
            lists=True,
            movable=True,
        )
        for path, handler, summary, request in (
            ("/completion", "llamacpp.completion", "Go on with a text, as llama.cpp has it", LlamaCompletionRequest),
            ("/completions", "llamacpp.completion", "Go on with a text, as llama.cpp has it", LlamaCompletionRequest),
            ("/infill", "llamacpp.infill", "What stands between two texts", LlamaInfillRequest),
        )
    ),
    Route(
        "post",
        "/embedding",
        "llamacpp.embedding",
        "Vectors, as llama.cpp had them first",
        list,
        LlamaEmbeddingRequest,
        pools=True,
        statuses=ASKS,
        error=answers.LlamaError,
    ),
    Route(
        "get",
        "/lora-adapters",
        "llamacpp.adapters",
        "Adapters that requests may name",
        list,
        query=ModelQuery,
        statuses=MODEL,
        error=answers.LlamaError,
    ),
    Route(
        "post",
        "/lora-adapters",
        "llamacpp.scale_adapters",
        "Scales of adapters, which are 0 for all who name none",
        answers.LlamaSuccess,
        statuses=TAKES_BODY,
        error=answers.LlamaError,
    ),
    Route(
        "get",
        "/props",
        "llamacpp.props",
        "Model and settings",
        answers.LlamaProps,
        query=ModelQuery,
        statuses=MODEL,
        error=answers.LlamaError,
    ),
    Route(
        "get",
        "/slots",
        "llamacpp.slots",
        "Sequences that run, and that could",
        list,
        query=LlamaSlotsQuery,
        options=("enable_slots",),
        statuses=(400, *MODEL, 503),
        error=answers.LlamaError,
    ),
    Route("post", "/slots/{id}", "llamacpp.change_slot", refuses=True, error=answers.LlamaError),
    Route(
        "get",
        "/models/sse",
        "loading.watch",
        "How it stands with models, whenever that changes",
        event=answers.LlamaNews,
        ends="",
        head=False,
        statuses=(503,),
        error=answers.LlamaError,
    ),
    Route("post", "/models", "loading.add", refuses=True, error=answers.LlamaError),
    Route("delete", "/models", "loading.remove", refuses=True, error=answers.LlamaError),
    *(
        Route(
            "post",
            f"/models/{what}",
            f"loading.{what}",
            summary,
            answers.LlamaSuccess,
            LlamaModel,
            statuses=(*TAKES_BODY, *MODEL, 500, 503),
            error=answers.LlamaError,
            admin=True,
            of_router=True,
        )
        for what, summary in (
            ("load", "Have a model in memory"),
            ("unload", "Give back what it takes, until it is asked"),
        )
    ),
    Route(
        "post",
        "/apply-template",
        "tokenization.apply_template",
        "The text of a conversation's prompt",
        answers.LlamaPrompt,
        TokenizeRequest,
        statuses=ASKS,
        error=answers.LlamaError,
    ),
)
