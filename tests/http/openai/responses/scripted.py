"""A model that says what a test wrote, behind a real socket; and what tests of adapters have it say."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from aiohttp import web
from hypothesis import strategies as st

from actorserve.http.errors import ApiError
from actorserve.http.output.events import Arguments, CallStart, Content, Piece, ReasoningText

KEY = "00000000000000070000002a"
USAGE: dict[str, Any] = {
    "prompt_tokens": 11,
    "completion_tokens": 7,
    "total_tokens": 18,
    "prompt_tokens_details": {"cached_tokens": 4},
    "completion_tokens_details": {"reasoning_tokens": 3},
}
THOUGHT: list[Piece] = [ReasoningText("Let me"), ReasoningText(" see.")]
SAID: list[Piece] = [Content("It is "), Content("é\n2"), Content("°.")]
CALLED: list[Piece] = [CallStart(0, "weather"), Arguments(0, '{"city":'), Arguments(0, '"Oslo"}')]
TWICE: list[Piece] = [*CALLED, CallStart(1, "weather", "own-id"), Arguments(1, '{"city":"Rome"}')]


@dataclass
class Script:
    """What the model says next, and what was asked of it."""

    pieces: list[Piece] = field(default_factory=list)
    finish_reason: str = "stop"
    stop_reason: str | int | None = None
    fails_after: int | None = None  # of the pieces
    asked: list[Any] = field(default_factory=list)


class Writer(Protocol):
    """What writers of all APIs have."""

    def first(self) -> bytes: ...

    def pieces(self, pieces: list[Piece]) -> bytes: ...

    def skip(self, pieces: list[Piece]) -> None: ...

    def error(self, error: ApiError) -> bytes: ...


Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


async def stream(request: web.Request, script: Script, writer: Writer, last: Callable[[], bytes]) -> web.StreamResponse:
    """Play the script; each piece is a write of its own. A process that is replaced in the middle shows nowhere."""
    response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
    await response.prepare(request)
    await response.write(writer.first())
    for index, piece in enumerate(script.pieces):
        if index == script.fails_after:
            await response.write(writer.error(ApiError(500, "The engine could not compute this request.")))
            return response
        await response.write(writer.pieces([piece]))
    await response.write(last())
    return response


@contextmanager
def serving(path: str, handler: Handler, error_body: Callable[[ApiError], object]) -> Iterator[str]:
    """A server in a thread of its own. Yields its address."""

    async def answer(request: web.Request) -> web.StreamResponse:
        try:
            return await handler(request)
        except ApiError as error:
            return web.json_response(error_body(error), status=error.status)

    loop = asyncio.new_event_loop()
    app = web.Application()
    app.router.add_post(path, answer)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0)

    async def start() -> str:
        await runner.setup()
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        host, port = runner.addresses[0][:2]
        return f"http://{host}:{port}"

    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield asyncio.run_coroutine_threadsafe(start(), loop).result(10)
    finally:
        asyncio.run_coroutine_threadsafe(runner.cleanup(), loop).result(10)
        loop.call_soon_threadsafe(loop.stop)
        thread.join(10)
        loop.close()


def events_of(data: bytes) -> list[dict[str, Any]]:
    """Server-sent events, each of whose name is its type."""
    *events, nothing = data.decode().split("\n\n")
    assert nothing == ""
    bodies = []
    for event in events:
        name, body = event.split("\n")
        bodies.append(json.loads(body.removeprefix("data: ")))
        assert name == f"event: {bodies[-1]['type']}" and body.startswith("data: {")
    return bodies


TEXT = st.text('ab {}[]:,"\\\n\r\té\u2028\U0001f600\x00-1.e', max_size=6)
NUMBER = st.sampled_from([0, -1, 12, 1 << 70, 0.5, -2.5e-9, 1e300])
PLAIN = NUMBER | st.sampled_from([None, True, False]) | TEXT
JSON = PLAIN | st.lists(PLAIN | st.lists(PLAIN, max_size=2), max_size=3)
OBJECT = st.dictionaries(TEXT, JSON | st.dictionaries(TEXT, JSON, max_size=2), max_size=3)


@st.composite
def cut(draw: st.DrawFn, text: str) -> list[str]:
    """A text in parts, some of them empty."""
    places = sorted(draw(st.lists(st.integers(0, len(text)), max_size=4)))
    return [text[begin:end] for begin, end in zip([0, *places], [*places, len(text)], strict=True)]


@st.composite
def piece_lists(draw: st.DrawFn) -> list[Piece]:
    """Whatever a parser may find: thinking, text and calls in any order, whose arguments may be no JSON at all."""
    pieces: list[Piece] = []
    calls = 0
    for kind in draw(st.lists(st.sampled_from("crt"), max_size=6)):
        if kind == "t":
            pieces.append(
                CallStart(calls, draw(st.sampled_from(["f", "g"])), draw(st.sampled_from([None, "", "x", "y"])))
            )
            whole = json.dumps(draw(OBJECT), ensure_ascii=draw(st.booleans()))
            arguments = draw(st.sampled_from([whole, whole[: len(whole) // 2], f" {whole} ", draw(TEXT), whole + "}"]))
            pieces += [Arguments(calls, part) for part in draw(cut(arguments))]
            calls += 1
        else:
            kind_of = Content if kind == "c" else ReasoningText
            pieces += [kind_of(part) for part in draw(cut(draw(TEXT)))]
    return pieces
