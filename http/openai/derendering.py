"""Answers of a token-in, token-out engine that somebody else has asked, whole or chunk by chunk, as vLLM has it: what
their tokens say, and what they are of an API's answer. Knows no HTTP.

Of a stream nothing is kept between two chunks: the client brings back what it was told beside the chunk before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from actorserve.actors.protocol.messages import TokenLogprobs

from ..errors import bad_request
from ..generation.choice import Choice
from ..generation.fields.ranges import keeps_stop
from ..generation.prepare import MAX_SEQUENCES
from ..output.parsers.registry import STARTS_INSIDE, THINK_MARKERS
from ..output.turns import Turns
from ..settings import Settings
from .schemas import ChatRequest, CompletionRequest, GenerationFields, Object

NAMED = "token_id:"  # before the id, where a token is named by it
BROKEN = "\ufffd"  # a character of which the rest is still to come
TAIL = 4  # tokens of a prompt behind which the answer's first one has the text that it has there
AT_A_TIME = 256  # parts of a text that are read again before others have a turn
Ids = Annotated[list[int], Meta(max_length=1 << 20)]
Byte = Annotated[int, Meta(ge=0, le=255)]
Finish = Literal["stop", "length", "abort", "repetition"]


class EngineLogprob(msgspec.Struct):
    """Of a token, by vLLM's `token_id` or by the name and bytes that this server gives it."""

    logprob: float
    token_id: int | None = None
    token: str = ""
    bytes: list[Byte] | None = None
    rank: int | None = None
    top_logprobs: list[EngineLogprob] = []

    @property
    def id(self) -> int:
        """Of the token."""
        if self.token_id is not None:
            return self.token_id
        number = self.token.removeprefix(NAMED)
        if number == self.token or not number.isdecimal():
            raise bad_request(
                f"logprobs: a token is named by token_id, or as {NAMED}5, not {self.token!r:.64}.", "logprobs"
            )
        return int(number)


class EngineLogprobs(msgspec.Struct):
    """Of the tokens of a choice."""

    content: list[EngineLogprob] | None = None


class EngineChoice(msgspec.Struct):
    """A choice of an answer of /inference/v1/generate."""

    token_ids: Ids
    index: int = 0
    finish_reason: Finish | None = "stop"
    stop_reason: str | int | None = None
    logprobs: EngineLogprobs | None = None


class EngineChunkChoice(msgspec.Struct):
    """One of a chunk."""

    token_ids: Ids | None = None
    index: int = 0
    finish_reason: Finish | None = None
    stop_reason: str | int | None = None
    logprobs: EngineLogprobs | None = None


class EngineFields(msgspec.Struct, kw_only=True):
    """What stands beside the choices; what else stands there is passed over."""

    request_id: str = ""
    prompt_token_ids: Ids | None = None
    prompt_logprobs: list[Any] | None = None
    kv_transfer_params: Object | None = None
    metrics: Object | None = None


class EngineAnswer(EngineFields, kw_only=True):
    """An answer of /inference/v1/generate."""

    choices: Annotated[list[EngineChoice], Meta(min_length=1, max_length=MAX_SEQUENCES)]

    def beside(self) -> dict[str, Any]:
        """What is told as the engine has said it."""
        names = ("prompt_logprobs", "kv_transfer_params", "metrics")
        found = {name: value for name in names if (value := getattr(self, name)) is not None}
        return {"id": self.request_id, **found} if self.request_id else found


class EngineUsage(msgspec.Struct):
    """Of what has come so far."""

    prompt_tokens: int = 0
    completion_tokens: int | None = 0


class EngineChunk(EngineFields, kw_only=True):
    """An event of its stream."""

    choices: Annotated[list[EngineChunkChoice], Meta(max_length=1)]
    usage: EngineUsage | None = None


class StreamState(msgspec.Struct):
    """What the client brings back of a choice's chunks."""

    token_ids: Ids = []
    parts: Annotated[list[Annotated[int, Meta(ge=0)]], Meta(max_length=1 << 20)] = []  # characters that each has told
    logprob_offset: Annotated[int, Meta(ge=0)] = 0  # of a completion's text, up to the last told token
    pending: Annotated[list[Byte], Meta(max_length=3)] = []  # of that token's bytes, where its character goes on
    prompt: Annotated[list[int], Meta(max_length=TAIL)] = []  # its last tokens: an engine tells them only at first
    opened: bool | None = None  # it leaves the answer inside the model's thinking
    seed: Annotated[int, Meta(ge=0, le=(1 << 63) - 1)] = 0  # of which ids of calls are made
    created: int = 0
    begun: bool = False  # the role was told


class DerenderFields(msgspec.Struct, kw_only=True):
    """What both kinds have in common."""

    model: str | None = None
    stream: bool | None = None  # `generate_chunk` is there
    generate_chunk: EngineChunk | None = None
    stream_state: StreamState | None = None  # as the answer to the chunk before has it


class DerenderChatRequest(DerenderFields, kw_only=True):
    """POST /v1/chat/completions/derender."""

    generate_response: EngineAnswer | None = None
    chat_request: ChatRequest | None = None  # whose answer it is; without it nothing is parsed
    prompt_token_ids: Ids | None = None
    prompt_tokens: Annotated[int, Meta(ge=0)] | None = None


class DerenderCompletionRequest(DerenderFields, kw_only=True):
    """POST /v1/completions/derender."""

    generate_responses: Annotated[list[EngineAnswer], Meta(min_length=1, max_length=MAX_SEQUENCES)] | None = None
    completion_request: CompletionRequest | None = None
    prompt_tokens: Annotated[int, Meta(ge=0)] | list[Annotated[int, Meta(ge=0)]] | None = None  # of all, or of each
    prompt_token_ids: Annotated[list[int | Ids | None], Meta(max_length=1 << 20)] | None = None  # a chunk's, or of each


def check_form(body: DerenderFields, whole: str) -> None:
    """400 unless there is what `stream` says, and that alone."""
    wanted, other = ("generate_chunk", whole) if body.stream else (whole, "generate_chunk")
    if getattr(body, wanted) is None:
        raise bad_request(f"{wanted} is missing{' where stream is true' if body.stream else ''}.", wanted)
    if getattr(body, other) is not None:
        raise bad_request(f"{other} does not go with stream: {'true' if body.stream else 'false'}.", other)


def check_stream(body: GenerationFields | None) -> None:
    """400 for what cannot be done chunk by chunk."""
    if body is not None and body.stop:
        text = "stop: a text that was told cannot be cut; without stream, or by /v1/chat/completions, it is."
        raise bad_request(text, "stop")


def has_logprobs(given: EngineAnswer | EngineChunk | None) -> bool:
    """Of any choice?"""
    return given is not None and any(one.logprobs is not None for one in given.choices)


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
    choice.ids = list(given.token_ids)
    choice.finish_reason, choice.stop_reason = given.finish_reason or "stop", stop


async def replay(choice: Choice, state: StreamState, text: str) -> str:
    """The choice's parser reads again, part by part, what was told of a text; what was not is left."""
    if len(state.parts) > (most := len(state.token_ids) + 1):
        raise bad_request(f"stream_state.parts has {len(state.parts)} items for {most - 1} token_ids.", "stream_state")
    at, turns = 0, Turns(AT_A_TIME)
    for length in state.parts:
        choice.text.append(text[at : at + length])
        choice.take()
        at += length
        await turns.done(1)
    return text[at:]


def unnamed(given: EngineLogprobs | None, settings: Settings) -> set[int]:
    """The tokens whose bytes nobody has told. 400 where there are more than a request may ask for."""
    found, content = set(), (given and given.content) or ()
    if len(content) > settings.max_model_len:
        text = f"{len(content)} tokens, at most {settings.max_model_len} (max_model_len) are taken"
        raise bad_request(f"logprobs.content has {text}.", "logprobs")
    for one in content:
        if len(one.top_logprobs) > settings.most_logprobs:
            text = (
                f"at most {settings.most_logprobs} (--max-logprobs) stand beside a token, not {len(one.top_logprobs)}"
            )
            raise bad_request(f"logprobs.top_logprobs: {text}.", "logprobs")
        found |= {token.id for token in (one, *one.top_logprobs) if token.bytes is None}
    return found


def token_logprobs(given: EngineLogprobs | None, texts: Mapping[int, str]) -> list[TokenLogprobs]:
    """As they are told of a choice of this server; `texts`: of tokens whose bytes nobody has told."""

    def text_of(one: EngineLogprob) -> bytes:
        return texts[one.id].encode() if one.bytes is None else bytes(one.bytes)

    return [
        TokenLogprobs(text_of(one), one.id, one.logprob, one.rank or 0, _others(one.top_logprobs, text_of))
        for one in (given and given.content) or ()
    ]


def _others(given: Iterable[EngineLogprob], text_of: Any) -> list[tuple[bytes, int, float]]:
    return [(text_of(one), one.id, one.logprob) for one in given]


def each(given: Sequence[Any] | int | None, count: int, field: str) -> list[Any]:
    """What is said of each of so many answers; a number is of all together."""
    if given is None or isinstance(given, int):
        return [given or 0] + [0] * (count - 1) if isinstance(given, int) else [None] * count
    if len(given) != count:
        raise bad_request(f"{field} has {len(given)} items for {count} of generate_responses.", field)
    return list(given)
