"""The paths of OpenAI's responses and Anthropic's messages."""

from __future__ import annotations

from ..anthropic.schemas import CountRequest, MessagesRequest
from ..openai.responses.schemas import InputItemsQuery, ResponsesRequest
from ..openapi import answers, dialects
from ..route import ASKS, CHAT, TAKES_BODY, Route

MESSAGES = "/v1/messages"
RESPONSES = "/v1/responses"
RESPONSE = RESPONSES + "/{id:(?!compact$)[^/]+}"
RESPONSES_AND_MESSAGES: tuple[Route, ...] = (
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
        movable=True,
    ),
    Route(
        "get",
        RESPONSES,
        "response_sockets.connect",
        "Responses one after the other over a WebSocket: a message begins each, and its events are messages",
        generates=CHAT,
        statuses=(400, 403),
        head=False,
        upgrades=True,
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
        "post",
        f"{RESPONSES}/render",
        "dialect_rendering.response",
        "The tokens of its prompt",
        answers.Rendered,
        ResponsesRequest,
        statuses=ASKS,
    ),
    Route(
        "post",
        f"{RESPONSES}/compact",
        "compact",
        "The user's messages, and the model's summary of all else",
        dialects.CompactedResponse,
        ResponsesRequest,
        generates=CHAT,
        statuses=ASKS,
        repeatable=True,
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
        query=InputItemsQuery,
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
        MESSAGES,
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
        f"{MESSAGES}/count_tokens",
        "count_tokens",
        "How many tokens a conversation has",
        dialects.InputTokens,
        CountRequest,
        statuses=ASKS,
        error=dialects.AnthropicError,
    ),
    Route(
        "post",
        f"{MESSAGES}/render",
        "dialect_rendering.message",
        "The tokens of its prompt",
        answers.Rendered,
        MessagesRequest,
        statuses=ASKS,
        error=dialects.AnthropicError,
    ),
)
