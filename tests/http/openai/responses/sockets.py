"""A client of /v1/responses over a WebSocket, before an engine that the test plays."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import aiohttp

from actorserve.actors.protocol.topics.prompts import ChatPrompt
from tests.http.fakes import finish_all
from tests.http.realtime.talk import Talk
from tests.http.serving import Served

PATH = "/v1/responses"

ENDS = ("response.completed", "response.failed", "response.incomplete", "error")


class Socket(Talk):
    """A client's end."""

    async def end(self) -> list[dict[str, Any]]:
        """The events up to a response's last."""
        events = [await self.next()]
        while events[-1]["type"] not in ENDS:
            events.append(await self.next())
        return events

    async def create(self, **fields: Any) -> None:
        await self.send("response.create", **fields)

    async def refused(self, **fields: Any) -> dict[str, Any]:
        await self.create(**{"input": "hi"} | fields)
        event = await self.next()
        assert event["type"] == "error", event
        return event


@asynccontextmanager
async def connected(served: Served, **options: Any) -> AsyncIterator[Socket]:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as session:
        async with session.ws_connect(PATH, **options) as socket:
            yield Socket(socket)


async def answered(served: Served, socket: Socket, **fields: Any) -> dict[str, Any]:
    """A response to its end."""
    await socket.create(**{"input": "hi"} | fields)
    finish_all(await served.job())
    last = (await socket.end())[-1]
    assert last["type"] == "response.completed", last
    return dict(last["response"])


async def prompt_of(served: Served) -> str:
    job = await served.job()
    (asked,) = job.prompts
    assert isinstance(asked, ChatPrompt)
    finish_all(job)
    return asked.messages.decode()
