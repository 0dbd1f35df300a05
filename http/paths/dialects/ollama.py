"""The paths of Ollama's API."""

from __future__ import annotations

from ...ollama.schemas import (
    OllamaChatRequest,
    OllamaEmbeddingsRequest,
    OllamaEmbedRequest,
    OllamaGenerateRequest,
    OllamaModel,
    OllamaPullRequest,
)
from ...openapi import ollama as answers
from ...output.writer import NDJSON
from ...route import ASKS, CHAT, MODEL, TAKES_BODY, Operation, Route


def _generating(path: str, handler: str, summary: str, answer: type, request: type, operation: Operation) -> Route:
    return Route(
        "post",
        path,
        handler,
        summary,
        answer,
        request,
        answer,
        generates=operation,
        stream=NDJSON,
        ends="",
        statuses=ASKS,
        error=answers.OllamaError,
        repeatable=True,
        movable=True,
    )


def _about(method: str, path: str, handler: str, summary: str, answer: type, request: type | None = None) -> Route:
    statuses = (*TAKES_BODY, *MODEL) if request is not None else ()
    return Route(method, path, handler, summary, answer, request, statuses=statuses, error=answers.OllamaError)


def _pooling(path: str, handler: str, summary: str, answer: type, request: type) -> Route:
    return Route("post", path, handler, summary, answer, request, statuses=ASKS, pools=True, error=answers.OllamaError)


OLLAMA: tuple[Route, ...] = (
    _generating(
        "/api/chat",
        "ollama.chat",
        "Answer, in the form of Ollama's chat",
        answers.OllamaMessageRecord,
        OllamaChatRequest,
        CHAT,
    ),
    _generating(
        "/api/generate",
        "ollama.generate",
        "Answer one prompt, in the form of Ollama's",
        answers.OllamaTextRecord,
        OllamaGenerateRequest,
        CHAT,
    ),
    _pooling("/api/embed", "ollama.embed", "Vectors of texts", answers.OllamaVectors, OllamaEmbedRequest),
    _pooling("/api/embeddings", "ollama.embeddings", "A vector", answers.OllamaVector, OllamaEmbeddingsRequest),
    _about("get", "/api/tags", "ollama.tags", "The models by their names", answers.OllamaModels),
    _about("get", "/api/ps", "ollama.running", "The models in memory", answers.OllamaModels),
    _about("post", "/api/show", "ollama.show", "What is known of a model", answers.OllamaShown, OllamaModel),
    Route(
        "post",
        "/api/pull",
        "ollama.pull",
        "Fetch a model: one that is served is there, and no other is fetched",
        answers.OllamaStatus,
        OllamaPullRequest,
        answers.OllamaStatus,
        stream=NDJSON,
        ends="",
        statuses=(*TAKES_BODY, *MODEL),
        error=answers.OllamaError,
    ),
    _about("get", "/api/version", "ollama.version", "The version of this API", answers.OllamaVersion),
    *(
        Route(method, f"/api/{name}", "ollama.refuse", error=answers.OllamaError, refuses=True)
        for method, name in (
            ("post", "push"),
            ("post", "create"),
            ("post", "copy"),
            ("delete", "delete"),
            ("post", "blobs/{digest}"),
        )
    ),
)
