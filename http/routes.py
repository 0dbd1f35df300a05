"""The paths of the server: one entry of ROUTES says all that anybody asks of a path.

The app routes by it, the middleware reads whom a path is open to, /openapi.json what it takes and answers, the frontend
what it begins at once, and logs and traces what generates. Schemas come from the structs that are named here.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from .admin_routes import ADMIN, ServerInfoOptions
from .anthropic.schemas import CountRequest, MessagesRequest
from .dashboard.files import TYPES
from .dialect_routes.cohere import COHERE
from .dialect_routes.llamacpp import LLAMACPP
from .dialect_routes.ollama import OLLAMA
from .generation.adapters import LoadAdapterRequest, UnloadAdapterRequest
from .generation.trail import GoOnRequest
from .openai.rendering import DerenderChatRequest, DerenderCompletionRequest
from .openai.responses.schemas import ResponsesRequest
from .openai.schemas import (
    ChatBatchRequest,
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    GenerateRequest,
    InvocationRequest,
    TokenizeRequest,
)
from .openapi import answers, dialects
from .pooling.schemas import ClassifyRequest, EmbeddingRequest, PoolingRequest, RerankRequest, ScoreRequest
from .route import ASKS, CHAT, MODEL, TAKES_BODY, TEXT, Route
from .scaling_routes import SCALING
from .speech.schemas import SpeechRequest, TranscriptEvent, Transcription


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
    """The body of /abort_requests."""

    request_ids: list[str] = []
    abort_all: bool = False


USAGE = "/v1/usage"
RESPONSES = "/v1/responses"
RESPONSE = RESPONSES + "/{id:(?!compact$)[^/]+}"  # compact is what others have, and is missing here: 404, and not 405
ROUTES: tuple[Route, ...] = (
    Route(
        "post",
        "/v1/chat/completions",
        "chat",
        "Answer a conversation",
        answers.ChatCompletion,
        ChatRequest,
        answers.ChatCompletionChunk,
        generates=CHAT,
        statuses=ASKS,
        repeatable=True,
        movable=True,
    ),
    Route(
        "post",
        "/v1/chat/completions/batch",
        "chats",
        "Answer several conversations",
        answers.ChatCompletion,
        ChatBatchRequest,
        answers.ChatCompletionChunk,
        generates=CHAT,
        statuses=ASKS,
        repeatable=True,
        movable=True,
    ),
    Route(
        "post",
        "/v1/completions",
        "completions",
        "Go on with texts",
        answers.Completion,
        CompletionRequest,
        answers.CompletionChunk,
        generates=TEXT,
        statuses=ASKS,
        repeatable=True,
        movable=True,
    ),
    Route(
        "post",
        RESPONSES,
        "respond",
        "Answer, in the form of OpenAI's responses",
        dialects.Response,
        ResponsesRequest,
        dialects.ResponseEvent,
        generates=CHAT,
        ends="",
        statuses=ASKS,
        repeatable=True,
    ),
    Route(
        "post",
        f"{RESPONSES}/input_tokens",
        "count_input",
        "How many tokens its prompt has",
        dialects.ResponseInputTokens,
        ResponsesRequest,
        statuses=ASKS,
    ),
    Route(
        "get",
        RESPONSE,
        "responses.retrieve",
        "A response that is kept",
        dialects.Response,
        statuses=(400, 404, 503),
    ),
    Route("delete", RESPONSE, "responses.delete", "Forget it", dialects.Deleted, statuses=(404, 503)),
    Route(
        "get",
        f"{RESPONSES}/{{id}}/input_items",
        "responses.input",
        "What it answers",
        dialects.InputItems,
        statuses=(400, 404, 503),
    ),
    Route(
        "post",
        f"{RESPONSES}/{{id}}/cancel",
        "responses.cancel",
        "End it",
        dialects.Response,
        statuses=(*TAKES_BODY, 404, 503),
    ),
    Route(
        "post",
        "/v1/messages",
        "messages",
        "Answer, in the form of Anthropic's messages",
        dialects.AnthropicMessage,
        MessagesRequest,
        dialects.AnthropicEvent,
        generates=CHAT,
        ends="",
        statuses=ASKS,
        error=dialects.AnthropicError,
        repeatable=True,
        movable=True,
    ),
    Route(
        "post",
        "/v1/messages/count_tokens",
        "count_tokens",
        "How many tokens a conversation has",
        dialects.InputTokens,
        CountRequest,
        statuses=ASKS,
        error=dialects.AnthropicError,
    ),
    Route(
        "post",
        "/inference/v1/generate",
        "generate",
        "Tokens in, tokens out",
        dialects.Generated,
        GenerateRequest,
        dialects.GeneratedPart,
        generates=TEXT,
        statuses=ASKS,
        repeatable=True,
        movable=True,
    ),
    *(
        Route("post", path, f"rendering.{handler}", summary, answer, request, statuses=ASKS)
        for path, handler, summary, answer, request in (
            ("/v1/chat/completions/render", "render_chat", "The tokens of its prompt", answers.Rendered, ChatRequest),
            (
                "/v1/completions/render",
                "render_completion",
                "The same of texts",
                list,
                CompletionRequest,
            ),
            (
                "/v1/chat/completions/derender",
                "derender_chat",
                "The answer that tokens are",
                answers.ChatCompletion,
                DerenderChatRequest,
            ),
            (
                "/v1/completions/derender",
                "derender_completion",
                "The same of texts",
                answers.Completion,
                DerenderCompletionRequest,
            ),
        )
    ),
    Route(
        "post",
        "/v1/embeddings",
        "pooling.embeddings",
        "Vectors of texts",
        answers.EmbeddingList,
        EmbeddingRequest,
        statuses=ASKS,
        pools=True,
    ),
    *(
        Route(
            "post",
            path,
            "pooling.score",
            "How near two texts are",
            answers.ScoreList,
            ScoreRequest,
            statuses=ASKS,
            pools=True,
        )
        for path in ("/score", "/v1/score")
    ),
    *(
        Route(
            "post",
            path,
            "pooling.rerank",
            "Which documents answer a query best",
            answers.Ranking,
            RerankRequest,
            statuses=ASKS,
            pools=True,
        )
        for path in ("/rerank", "/v1/rerank", "/v2/rerank")
    ),
    Route(
        "post",
        "/classify",
        "pooling.classify",
        "Labels of texts",
        answers.ClassifyList,
        ClassifyRequest,
        statuses=ASKS,
        pools=True,
    ),
    Route(
        "post",
        "/pooling",
        "pooling.pool",
        "What a model makes of texts, by token too",
        answers.PoolingList,
        PoolingRequest,
        statuses=ASKS,
        pools=True,
    ),
    Route(
        "post",
        "/invocations",
        "invocations.invoke",
        "What another path does, by the body's fields (SageMaker)",
        dict,
        InvocationRequest,
        answers.ChatCompletionChunk,
        generates=CHAT,
        statuses=ASKS,
        repeatable=True,
    ),
    *(
        Route(
            "post",
            f"/v1/audio/{name}",
            f"speech.{handler}",
            summary,
            Transcription,
            SpeechRequest,
            TranscriptEvent,
            ends="",
            statuses=ASKS,
            hears=True,
        )
        for name, handler, summary in (
            ("transcriptions", "transcribe", "Write down what is said"),
            ("translations", "translate", "The same, in English"),
        )
    ),
    Route(
        "post",
        "/go_on",
        "go_on",
        "Go on with a stream that another server has begun",
        answers.ChatCompletion,
        GoOnRequest,
        answers.ChatCompletionChunk,
        generates=CHAT,
        statuses=ASKS,
        repeatable=True,
    ),
    Route("get", "/tokenizer_info", "tokenizer_info", "The tokenizer's settings", dict),
    Route("get", "/v1/models", "models", "The models by their names", answers.ModelList),
    Route("get", "/v1/models/{model:.+}", "model", "One model", answers.ModelCard, statuses=MODEL),
    Route(
        "post",
        "/tokenize",
        "tokenize",
        "The tokens of a text or a conversation",
        answers.TokenizeAnswer,
        TokenizeRequest,
        statuses=ASKS,
    ),
    Route(
        "post",
        "/detokenize",
        "detokenize",
        "The text of tokens",
        answers.DetokenizeAnswer,
        DetokenizeRequest,
        statuses=ASKS,
    ),
    Route("get", "/health", "operations.health", "Does the server live?", answers.Health, open=True),
    Route("get", "/livez", "operations.health", "Does the server live?", answers.Health, open=True),
    Route("get", "/ping", "operations.health", "Does the server live?", answers.Health, open=True),
    Route("post", "/ping", "operations.health", "Does the server live?", answers.Health, open=True),
    *(
        Route(
            "get",
            path,
            "operations.ready",
            "Can it answer?",
            answers.Ready,
            open=True,
            others=((503, answers.NotReady),),
        )
        for path in ("/ready", "/readyz")
    ),
    Route("get", "/version", "operations.version", "The server's version", answers.Version, open=True),
    Route("get", "/load", "operations.load", "How many requests are being answered", answers.Load),
    Route(
        "get",
        "/server_info",
        "administration.server_info",
        "Versions, options, the model and all actors",
        dict,
        query=ServerInfoOptions,
        statuses=(400,),
    ),
    Route(
        "get",
        USAGE,
        "operations.usage",
        "What keys have used: one's own, or all with the admin's",
        answers.KeyUsageList,
        statuses=(404,),
        of_keys=True,
    ),
    Route("get", "/metrics", "operations.metrics", "Figures for Prometheus", open=True),
    Route("get", "/openapi.json", "described.document", "This document", dict),
    Route("get", "/", "page.index", "The page", page=True, open=True),
    Route("get", "/docs", "page.docs", "The list of paths", page=True, open=True),
    *(Route("get", f"/page/{name}", "page.file", page=True, open=True) for name in TYPES),
    Route("get", "/page/events", "page.events", "Statistics", page=True, head=False),
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
    *ADMIN,
    *SCALING,
    *OLLAMA,
    *COHERE,
    *LLAMACPP,
)

# --- what is asked of paths ----------------------------------------------------------------------------------------

OPEN_PATHS = frozenset(route.path for route in ROUTES if route.open)  # no key is asked for
PROBE_PATHS = frozenset(route.path for route in ROUTES if route.open and not route.page)  # how is the server?
PAGE_PATHS = OPEN_PATHS - PROBE_PATHS  # the page's files
ADMIN_PATHS = frozenset(route.path for route in ROUTES if route.admin)
UNBUILT_PATHS = frozenset(route.path for route in ROUTES if not route.handler)
GENERATING = {route.path: route.generates for route in ROUTES if route.generates is not None}
ERRORS = {route.path: route.error for route in ROUTES if route.error is not answers.Error}


def error_of(path: str) -> type:
    """The struct of errors as the clients of this path read them, also below it, where nothing is."""
    below = (error for known, error in ERRORS.items() if path.startswith(f"{known}/"))
    return ERRORS.get(path) or next(below, answers.Error)
