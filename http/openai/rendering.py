"""A request and its answer on both sides of a token-in, token-out engine, as vLLM has it: what /render makes of a
request is a body of /inference/v1/generate, and what /derender takes is the answer to that. Knows no HTTP.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt

from ..errors import bad_request
from ..generation.choice import Choice
from ..generation.fields.ranges import keeps_stop
from ..generation.fields.sampling import max_tokens_of
from ..generation.prepare import MAX_SEQUENCES
from ..output.parsers.registry import STARTS_INSIDE, THINK_MARKERS
from ..settings import Settings
from .schemas import (
    AllowedTools,
    ChatRequest,
    CompletionRequest,
    GenerateParameters,
    GenerationFields,
    NamedFunction,
    NamedTool,
)
from .thinking import budget_field
from .token_ids import OWN

NOT_TOKENS = (
    *(*OWN, "return_prompt_text", "return_token_offsets", "user", "metadata", "store", "service_tier"),
    *("use_beam_search", "truncate_prompt_tokens", "truncation_side"),  # a prompt is cut before it is rendered
)
Placed = tuple[list[int], list[tuple[int, int]] | None]  # ids of a prompt, and where each stands in its text
Ids = Annotated[list[int], Meta(max_length=1 << 20)]
Finish = Literal["stop", "length", "abort", "repetition"]


class EngineChoice(msgspec.Struct):
    """A choice of an answer of /inference/v1/generate."""

    token_ids: Ids
    index: int = 0
    finish_reason: Finish | None = "stop"
    stop_reason: str | int | None = None
    logprobs: dict[str, Any] | None = None


class EngineAnswer(msgspec.Struct):
    """An answer of /inference/v1/generate; what else stands there is passed over."""

    choices: Annotated[list[EngineChoice], Meta(min_length=1, max_length=MAX_SEQUENCES)]


class DerenderChatRequest(msgspec.Struct, kw_only=True):
    """POST /v1/chat/completions/derender."""

    generate_response: EngineAnswer
    model: str | None = None
    chat_request: ChatRequest | None = None  # whose answer it is; without it nothing is parsed
    prompt_token_ids: Ids = []
    prompt_tokens: Annotated[int, Meta(ge=0)] | None = None
    stream: bool | None = None


class DerenderCompletionRequest(msgspec.Struct, kw_only=True):
    """POST /v1/completions/derender."""

    generate_responses: Annotated[list[EngineAnswer], Meta(min_length=1, max_length=MAX_SEQUENCES)]
    model: str | None = None
    completion_request: CompletionRequest | None = None
    prompt_tokens: Annotated[int, Meta(ge=0)] | None = None  # of all prompts
    stream: bool | None = None


def check_renders(body: GenerationFields, prompt: Prompt) -> None:
    """400 for what token ids and sampling parameters do not say."""
    if isinstance(prompt, ChatPrompt) and prompt.media:
        raise bad_request("messages: pictures and sounds are no token ids, and cannot be rendered.", "messages")
    if body.use_beam_search:
        raise bad_request("use_beam_search cannot be rendered.", "use_beam_search")
    if isinstance(body, ChatRequest):
        if isinstance(body.tool_choice, NamedTool | AllowedTools) or body.tool_choice == "required":
            text = "tool_choice: what enforces it is no sampling parameter; it can be rendered with auto or none alone."
            raise bad_request(text, "tool_choice")
        if isinstance(body.function_call, NamedFunction):
            raise bad_request("function_call: a function by its name cannot be rendered.", "function_call")
        if body.thinking_token_budget is not None:
            name = budget_field(body)
            raise bad_request(f"{name} cannot be rendered.", name)


def rendered(
    body: GenerationFields, prompt: Placed, request_id: str, settings: Settings, capped: bool = False
) -> dict[str, Any]:
    """The body of /inference/v1/generate that asks for the same. `capped`: for no more than there is room for."""
    tokens, offsets = prompt
    names = [name for name in GenerateParameters.__struct_fields__ if name not in NOT_TOKENS]
    params = {name: value for name in names if (value := getattr(body, name, None)) is not None}
    limit, room = max_tokens_of(body), settings.max_model_len - len(tokens)
    if limit is None:
        most = settings.sampling_defaults.get("max_new_tokens")
        limit = room if most is None else min(room, int(most))
    elif capped:
        limit = min(limit, room)
    params["max_tokens"] = max(1, limit)
    if isinstance(body, ChatRequest):
        params.pop("logprobs", None)
        if body.logprobs:
            params["logprobs"] = body.top_logprobs or 0
    return {
        "request_id": request_id,
        "token_ids": tokens,
        "token_offsets": offsets,
        "sampling_params": msgspec.to_builtins(params),
        "model": body.model or settings.served[0],
        "stream": bool(body.stream),
        "stream_options": msgspec.to_builtins(body.stream_options) if body.stream else None,
        "cache_salt": body.cache_salt,
        "priority": body.priority or 0,
    }


def begins_inside(settings: Settings, prompt: str) -> bool:
    """Does this prompt leave its answer inside the model's thinking?"""
    if settings.reasoning_parser not in THINK_MARKERS:  # none, or a plugin that names no markers
        return False
    start, end = THINK_MARKERS[settings.reasoning_parser]
    opened, closed = prompt.rfind(start), prompt.rfind(end)
    return settings.reasoning_parser in STARTS_INSIDE if opened == closed else opened > closed


def text_tokens(given: EngineChoice, body: GenerationFields | None, settings: Settings) -> list[int]:
    """Those of a choice that are its text: the one that ended it is none, unless it is wanted."""
    wanted = body is not None and keeps_stop(body)
    own = body.stop_token_ids or [] if body is not None else []
    ends = given.finish_reason == "stop" and bool(given.token_ids) and not isinstance(given.stop_reason, str)
    if ends and not wanted and given.token_ids[-1] in {*own, *settings.end_tokens}:
        return given.token_ids[:-1]
    return given.token_ids


def fill(choice: Choice, given: EngineChoice, text: str, body: GenerationFields | None) -> None:
    """The choice has this text, and has ended so."""
    stop = given.stop_reason
    if given.finish_reason == "stop" and isinstance(stop, str) and (at := text.find(stop)) >= 0:
        wanted = body is not None and keeps_stop(body)
        text = text[: at + len(stop)] if wanted else text[:at]
    choice.text.append(text)
    choice.characters, choice.tokens = len(text), len(given.token_ids)
    choice.finish_reason, choice.stop_reason = given.finish_reason or "stop", stop
