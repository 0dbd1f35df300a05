"""One request to an OpenAI-compatible server, streamed and timed. The only file here that speaks HTTP under load.

It does as little as it can for each token: one `split` and one decoding into a struct.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import msgspec

from ...protocol.wire import UNREADABLE
from ..client_tls import ClientTls
from ..target import proxy_of
from .prompts import Prompt
from .record import RequestRecord
from .sse import EventReader

DONE = b"[DONE]"
BUFFER = 1 << 18
DETAIL = 300  # characters of an error that are kept


class _Delta(msgspec.Struct):
    content: str | None = None
    reasoning: str | None = None
    reasoning_content: str | None = None
    tool_calls: list[msgspec.Raw] | None = None


class _Choice(msgspec.Struct):
    text: str | None = None
    delta: _Delta | None = None
    finish_reason: str | None = None


class _PromptTokens(msgspec.Struct):
    cached_tokens: int | None = None


class _Usage(msgspec.Struct):
    prompt_tokens: int = 0
    completion_tokens: int = 0
    prompt_tokens_details: _PromptTokens | None = None


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    usage: _Usage | None = None
    error: Any = None


_decode = msgspec.json.Decoder(_Chunk).decode


class _Failed(Exception):
    """A request that went wrong in a way that has a name of its own."""

    def __init__(self, kind: str, detail: str) -> None:
        super().__init__(detail)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Target:
    """Where requests go, and what all of them say."""

    base_url: str
    model: str
    chat: bool = False
    endpoint: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    extra_body: Mapping[str, Any] = field(default_factory=dict)
    ignore_eos: bool = True
    continuous_usage: bool = True
    salt: str = ""  # of KV blocks: only requests with the same one share them
    timeout_s: float = 3600.0
    tls: ClientTls = ClientTls()  # noqa: RUF009

    @property
    def url(self) -> str:
        """Of generation."""
        return self.base_url + (self.endpoint or ("/v1/chat/completions" if self.chat else "/v1/completions"))

    def body(self, prompt: Prompt) -> bytes:
        """The request, as JSON."""
        body: dict[str, Any] = {"model": self.model, "stream": True, "temperature": 0.0}
        body["stream_options"] = {"include_usage": True}
        if self.continuous_usage:
            body["stream_options"]["continuous_usage_stats"] = True
        if self.chat:
            body["messages"] = prompt.messages or [{"role": "user", "content": prompt.text}]
        else:
            body["prompt"] = prompt.text
        body["max_completion_tokens" if self.chat else "max_tokens"] = prompt.output_tokens
        if self.ignore_eos:
            body["ignore_eos"] = True
        if self.salt:
            body["cache_salt"] = self.salt
        return json.dumps(body | dict(self.extra_body)).encode()


def open_session(target: Target) -> aiohttp.ClientSession:
    """For as many requests at once as are wanted."""
    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(_note_kept)
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, ssl=target.tls.context()),
        proxy=None if target.tls.own else proxy_of(target.base_url),
        trace_configs=[trace],
        headers={"Content-Type": "application/json", "Accept-Encoding": "identity", **target.headers},
        timeout=aiohttp.ClientTimeout(total=target.timeout_s, sock_connect=60.0),
        read_bufsize=BUFFER,
    )


@dataclass(slots=True)
class _Way:
    """How far one try of a request has come."""

    kept: bool = False  # it goes over a connection that another request used before
    answered: bool = False


async def _note_kept(session: aiohttp.ClientSession, context: Any, parameters: Any) -> None:
    context.trace_request_ctx.kept = True


async def _ask(session: aiohttp.ClientSession, target: Target, body: bytes, record: RequestRecord) -> None:
    """One request. A kept connection that the server closed just then says nothing about it: another one is taken."""
    while True:
        way = _Way()
        try:
            async with session.post(target.url, data=body, trace_request_ctx=way) as response:
                way.answered = True
                if response.status != 200:
                    raise _Failed(f"http {response.status}", await response.text(errors="replace"))
                return await _read(response, record)
        except (aiohttp.ClientOSError, aiohttp.ServerDisconnectedError):
            if way.answered or not way.kept:
                raise


async def send(session: aiohttp.ClientSession, target: Target, prompt: Prompt) -> RequestRecord:
    """Send one request; whatever goes wrong on the way stands in the record."""
    record = RequestRecord(prompt_tokens=prompt.tokens)
    body = target.body(prompt)
    record.started = time.perf_counter()
    try:
        await _ask(session, target, body, record)
        if not record.chunks:
            raise _Failed("no tokens", "the answer ended without any")
    except _Failed as error:
        record.error, record.detail = error.kind, str(error)[:DETAIL]
    except TimeoutError:
        record.error, record.detail = "timeout", f"no end within {target.timeout_s:g} s"
    except aiohttp.ClientConnectorError as error:
        record.error, record.detail = "no connection", str(error)[:DETAIL]
    except (aiohttp.ClientError, OSError) as error:
        record.error, record.detail = "broken off", repr(error)[:DETAIL]
    record.ended = time.perf_counter()
    return record


async def _read(response: aiohttp.ClientResponse, record: RequestRecord) -> None:
    """Take the events up to `[DONE]`, or to the end if the answer has told its own; otherwise it was broken off."""
    reader = EventReader()
    seen = 0
    while data := await response.content.readany():
        now = time.perf_counter()
        for event in reader.feed(data):
            if event == DONE:
                await response.content.read()  # so that the connection can be used again
                return
            seen = _take(event, record, now, seen)
    if reader.cut or not record.finish_reason:
        said = "within an event" if reader.cut else "without [DONE]"
        raise _Failed("broken off", f"the stream ended {said}")


def _take(event: bytes, record: RequestRecord, now: float, seen: int) -> int:
    """Enter one event, and say how many tokens the server has counted up to it."""
    try:
        chunk = _decode(event)
    except UNREADABLE as error:
        raise _Failed("malformed event", f"{error}: {event[:100]!r}") from None
    if chunk.error is not None:
        raise _Failed("error event", json.dumps(chunk.error))
    usage, size = chunk.usage, 0
    continuous = len(record.sizes) == len(record.chunks)  # otherwise a usage beside the last choice is of them all
    if usage is not None:
        record.prompt_tokens, record.usage_tokens = usage.prompt_tokens, usage.completion_tokens
        if usage.prompt_tokens_details is not None:
            record.cached_tokens = usage.prompt_tokens_details.cached_tokens
        size = usage.completion_tokens - seen if chunk.choices and continuous else 0
        seen = usage.completion_tokens if chunk.choices else seen
    for choice in chunk.choices:
        record.finish_reason = choice.finish_reason or record.finish_reason
    if size > 0 or ((usage is None or not continuous) and any(map(_has_text, chunk.choices))):
        record.chunks.append(now)
        if size > 0:
            record.sizes.append(size)
    return seen


def _has_text(choice: _Choice) -> bool:
    if choice.text:
        return True
    delta = choice.delta
    return delta is not None and bool(delta.content or delta.reasoning or delta.reasoning_content or delta.tool_calls)
