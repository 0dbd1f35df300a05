"""GET /openapi.json: what every path takes and answers. A path is one entry of ROUTES; schemas come from the structs
that requests are decoded into (requests.py), and from those that say what answers are (answers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import KW_ONLY, dataclass
from http import HTTPStatus

import actorserve

from ..anthropic.schemas import CountRequest, MessagesRequest
from ..generation.idempotency import CLOSED, MAX_KEY, STATE
from ..openai.responses.schemas import ResponsesRequest
from ..openai.schemas import ChatRequest, CompletionRequest, DetokenizeRequest, GenerateRequest, TokenizeRequest
from ..settings import Settings
from . import answers, dialects
from .requests import Book, Schema, make_book

TAKES_BODY = (400, 408, 413, 415)
MODEL = (404,)
RENDERS = (422, 500, 503)  # other actors are asked
JSON, EVENTS, PLAIN = "application/json", "text/event-stream", "text/plain"


@dataclass(frozen=True)
class Route:
    """One method of one path."""

    method: str
    path: str
    summary: str
    answer: type | None  # the struct of a JSON answer; None: a text
    request: type | None = None  # the struct that its body is decoded into
    event: type | None = None  # the struct of an event's data, where `stream` makes the answer a stream
    _: KW_ONLY
    ends: str = "[DONE]"  # the last event's data, that is no JSON
    statuses: tuple[int, ...] = ()  # that it may answer beside 200, and 401 where keys are asked for
    error: type = answers.Error
    open: bool = False  # no key is asked for
    repeatable: bool = False  # takes an Idempotency-Key
    text: str = PLAIN  # the type of an answer that is a text
    others: tuple[tuple[int, type], ...] = ()  # statuses with an answer of their own


ASKS = (*TAKES_BODY, *MODEL, *RENDERS)
ROUTES: tuple[Route, ...] = (
    Route(
        "post",
        "/v1/chat/completions",
        "Answer a conversation",
        answers.ChatCompletion,
        ChatRequest,
        answers.ChatCompletionChunk,
        statuses=ASKS,
        repeatable=True,
    ),
    Route(
        "post",
        "/v1/completions",
        "Go on with texts",
        answers.Completion,
        CompletionRequest,
        answers.CompletionChunk,
        statuses=ASKS,
        repeatable=True,
    ),
    Route(
        "post",
        "/v1/responses",
        "Answer, in the form of OpenAI's responses",
        dialects.Response,
        ResponsesRequest,
        dialects.ResponseEvent,
        ends="",
        statuses=ASKS,
        repeatable=True,
    ),
    Route(
        "post",
        "/v1/responses/input_tokens",
        "How many tokens its prompt has",
        dialects.ResponseInputTokens,
        ResponsesRequest,
        statuses=ASKS,
    ),
    Route("get", "/v1/responses/{id}", "A response that is kept", dialects.Response, statuses=(400, 404, 503)),
    Route("delete", "/v1/responses/{id}", "Forget it", dialects.Deleted, statuses=(404, 503)),
    Route("get", "/v1/responses/{id}/input_items", "What it answers", dialects.InputItems, statuses=(400, 404, 503)),
    Route("post", "/v1/responses/{id}/cancel", "End it", dialects.Response, statuses=(*TAKES_BODY, 404, 503)),
    Route(
        "post",
        "/v1/messages",
        "Answer, in the form of Anthropic's messages",
        dialects.AnthropicMessage,
        MessagesRequest,
        dialects.AnthropicEvent,
        ends="",
        statuses=ASKS,
        error=dialects.AnthropicError,
        repeatable=True,
    ),
    Route(
        "post",
        "/v1/messages/count_tokens",
        "How many tokens a conversation has",
        dialects.InputTokens,
        CountRequest,
        statuses=ASKS,
        error=dialects.AnthropicError,
    ),
    Route(
        "post",
        "/inference/v1/generate",
        "Tokens in, tokens out",
        dialects.Generated,
        GenerateRequest,
        dialects.GeneratedPart,
        statuses=ASKS,
        repeatable=True,
    ),
    Route("get", "/tokenizer_info", "The tokenizer's settings", dict),
    Route("get", "/v1/models", "The models by their names", answers.ModelList),
    Route("get", "/v1/models/{model}", "One model", answers.Model, statuses=MODEL),
    Route(
        "post", "/tokenize", "The tokens of a text or a conversation", answers.Tokens, TokenizeRequest, statuses=ASKS
    ),
    Route("post", "/detokenize", "The text of tokens", answers.Text, DetokenizeRequest, statuses=ASKS),
    Route("get", "/health", "Does the server live?", answers.Health, open=True),
    Route("get", "/ping", "Does the server live?", answers.Health, open=True),
    Route("post", "/ping", "Does the server live?", answers.Health, open=True),
    Route("get", "/ready", "Can it answer?", answers.Ready, open=True, others=((503, answers.NotReady),)),
    Route("get", "/version", "The server's version", answers.Version, open=True),
    Route("get", "/load", "How many requests are being answered", answers.Load),
    Route("get", "/metrics", "Figures for Prometheus", None, open=True),
    Route("get", "/openapi.json", "This document", dict),
)


def document(settings: Settings, routes: Iterable[Route] = ROUTES) -> Schema:
    """The whole document, of the server with these settings."""
    routes = tuple(routes)
    book = make_book(_structs(routes), {route.request for route in routes if route.request is not None}, settings)
    components: Schema = {"schemas": book.schemas}
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method] = _operation(route, book)
    if settings.api_keys:
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "actorserve", "version": actorserve.__version__, "description": "Large language models."},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": components,
    }


def _structs(routes: Iterable[Route]) -> Iterator[type]:
    """Of all that is answered."""
    for route in routes:
        kinds = (route.answer, route.event, route.error, *(kind for _, kind in route.others))
        yield from (kind for kind in kinds if kind is not None and kind is not dict)


def _operation(route: Route, book: Book) -> Schema:
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{route.method}{route.path}").strip("_"),
        "summary": route.summary,
        "responses": {"200": _success(route, book)},
    }
    if parameters := _parameters(route, book):
        operation["parameters"] = parameters
    if route.request is not None:
        operation["requestBody"] = {"required": True, "content": {JSON: {"schema": book.ref(route.request)}}}
    if book.settings.api_keys and not route.open:
        operation["security"] = [{"bearer": []}, {"key": []}]
        operation["responses"]["401"] = _answer(401, book.ref(route.error))
    for status in sorted(route.statuses):
        operation["responses"][str(status)] = _answer(status, book.ref(route.error))
    for status, kind in route.others:
        operation["responses"][str(status)] = _answer(status, book.ref(kind))
    return operation


def _answer(status: int, schema: Schema) -> Schema:
    return {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": schema}}}


def _success(route: Route, book: Book) -> Schema:
    if route.answer is None:
        return {"description": "OK", "content": {route.text: {"schema": {"type": "string"}}}}
    schema = {"type": "object"} if route.answer is dict else book.ref(route.answer)
    answer = _answer(200, schema)
    if route.event is not None:
        answer["content"][EVENTS] = {"schema": _event([book.ref(route.event), book.ref(route.error)], route)}
    return answer


def _event(kinds: list[Schema], route: Route) -> Schema:
    """One event of a stream."""
    data: Schema = {"contentMediaType": JSON, "contentSchema": {"anyOf": kinds}}
    if route.ends:
        data = {"anyOf": [{"const": route.ends}, data]}
    return {
        "type": "object",
        "description": "An event as its fields.",
        "properties": {"data": {"type": "string", **data}, "id": {"type": "string"}, "event": {"type": "string"}},
        "required": ["data"],
    }


def _parameters(route: Route, book: Book) -> list[Schema]:
    names = re.findall(r"\{(\w+)\}", route.path)
    found = [
        _parameter(
            name, "path", {"enum": book.settings.served} if name == "model" else {"type": "string", "minLength": 1}
        )
        for name in names
    ]
    if route.repeatable:
        found += [
            _parameter("Idempotency-Key", "header", {"type": "string", "maxLength": MAX_KEY}),
            _parameter("Last-Event-ID", "header", {"type": "string", "pattern": _EVENT_ID}),
        ]
    return found


_EVENT_ID = rf"^{STATE.pattern}(\.{STATE.pattern})*{CLOSED}?$"


def _parameter(name: str, where: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}
