"""A client's end of a realtime connection."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
from aiohttp import ClientWebSocketResponse, WSMsgType

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from tests.http.serving import PATIENCE_S, Served

PATH = "/v1/realtime"
HELLO = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "hello"}]}
SPEECH = EncoderSpec(
    longest=4,
    decoder_longest=8,
    start=[1],
    filler=0,
    speech=SpeechSpec(languages={}, tasks={}, end=3, no_timestamps=4, mels=8, frames=16),
)
SOUND = base64.b64encode(bytes(3200)).decode()


class Talk:
    """A client's end."""

    def __init__(self, socket: ClientWebSocketResponse) -> None:
        self.socket = socket

    async def send(self, kind: str, **fields: Any) -> None:
        await self.socket.send_json({"type": kind, **fields})

    async def next(self) -> dict[str, Any]:
        return dict(await self.socket.receive_json(timeout=PATIENCE_S))

    async def kinds(self, count: int) -> list[str]:
        return [(await self.next())["type"] for _ in range(count)]

    async def until(self, kind: str) -> list[dict[str, Any]]:
        """Events up to one of this type."""
        events = [await self.next()]
        while events[-1]["type"] != kind:
            events.append(await self.next())
        return events

    async def error(self, kind: str, **fields: Any) -> dict[str, Any]:
        await self.send(kind, event_id="mine", **fields)
        event = await self.next()
        assert event["type"] == "error" and event["error"]["event_id"] == "mine", event
        return dict(event["error"])

    async def closed(self) -> int:
        message = await self.socket.receive(timeout=PATIENCE_S)
        assert message.type is WSMsgType.CLOSE, message
        return int(message.data)


@asynccontextmanager
async def talking(served: Served, query: str = "", greets: bool = True, **options: Any) -> AsyncIterator[Talk]:
    """`greets`: it begins."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as session:
        async with session.ws_connect(PATH + query, **options) as socket:
            talk = Talk(socket)
            if greets:
                assert (await talk.next())["type"] == "session.created"
            yield talk


async def begun(served: Served, talk: Talk, **fields: Any) -> Any:
    """The job of a response that is being generated."""
    await talk.send("conversation.item.create", item=HELLO)
    await talk.send("response.create", **fields)
    await talk.until("response.created")
    return await served.job()
