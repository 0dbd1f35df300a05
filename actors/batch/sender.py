"""Sends the requests of a batch, so many at once, and keeps each answer once.

What the server answers is the answer, also a 4xx, but for one that lets nobody in: that ends the run. Where it gives
none (a connection that breaks, a server that is gone) or says that it cannot just now, the request is sent again, to
whoever is ready then; so it is with a sound that cannot be fetched just now.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from contextlib import AsyncExitStack
from dataclasses import dataclass
from typing import Any

import aiohttp
import msgspec

from ..files.lines import BUSY, Request, answer_line, pause_s, response_of
from .files import Answers, BatchError
from .forms import FormError, fields_of, form_of, takes_form
from .servers import BatchServer
from .sounds import CONNECT_S, Sounds, text_of

NOT_LET_IN = frozenset({401, 403})
MOST_SAID = 200  # letters of why it does not let us in


@dataclass(frozen=True, slots=True)
class Settings:
    """How it is sent."""

    concurrency: int
    retries: int  # of one request
    timeout_s: float
    key: str | None


class Sender:
    """`await Sender(…).run(requests)`."""

    def __init__(
        self, server: BatchServer, settings: Settings, answers: Answers, progress: Callable[[], object]
    ) -> None:
        self._server = server
        self._settings = settings
        self._answers = answers
        self._progress = progress
        self._sounds = Sounds(settings.timeout_s)
        self.answered = 0  # by this run

    async def run(self, waiting: Iterator[Request]) -> None:
        """Until all are answered. ServerError once there is no server, and BatchError if it does not let us in; what is
        answered by then is kept.
        """
        headers = {"Authorization": f"Bearer {self._settings.key}"} if self._settings.key else {}
        timeout = aiohttp.ClientTimeout(total=self._settings.timeout_s, sock_connect=CONNECT_S)
        connector = aiohttp.TCPConnector(limit=0, ssl=self._server.tls.context())
        async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as session:
            await self._all(session, waiting)

    async def _all(self, session: aiohttp.ClientSession, waiting: Iterator[Request]) -> None:
        tasks = [asyncio.create_task(self._take(session, waiting)) for _ in range(self._settings.concurrency)]
        try:
            await asyncio.gather(*tasks)  # the first that fails says why
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _take(self, session: aiohttp.ClientSession, waiting: Iterator[Request]) -> None:
        """One after the other, of those that nobody has taken."""
        for request in waiting:
            answer = await self._answer(session, request)
            self._answers.append(answer)
            self.answered += 1
            self._progress()

    async def _answer(self, session: aiohttp.ClientSession, request: Request) -> dict[str, Any]:
        async with AsyncExitStack() as held:
            body = _Body(request, self._sounds, held)
            for tries in range(self._settings.retries + 1):
                found = await self._try(session, request, body, last=tries == self._settings.retries)
                if isinstance(found, dict):
                    return found
                await asyncio.sleep(pause_s(found, tries))
        raise AssertionError("unreachable: the last try returns")

    async def _try(
        self, session: aiohttp.ClientSession, request: Request, body: _Body, last: bool
    ) -> dict[str, Any] | str:
        """Its answer; or, where another try is due, what a server says of when, which may be nothing."""
        address = await self._server.address()
        try:
            sent = await body.sent()
        except FormError as error:
            if error.retry_after is None or last:
                return answer_line(request.custom_id, None, {"code": "no_form", "message": str(error)})
            return error.retry_after
        try:
            async with session.post(address + request.url, **sent) as response:
                said = await response.read()
                if response.status in NOT_LET_IN:  # the right key would find it answered
                    raise BatchError(self._not_let_in(address, request, response, said))
                if response.status not in BUSY or last:
                    told = response_of(response.status, response.headers.get("X-Request-Id", ""), said)
                    return answer_line(request.custom_id, told, None)
                return response.headers.get("Retry-After", "")
        except (aiohttp.ClientError, TimeoutError) as error:
            self._server.lost()
            if not last:
                return ""
            message = f"the server gave no answer: {text_of(error)}"
            return answer_line(request.custom_id, None, {"code": "no_answer", "message": message})

    def _not_let_in(self, address: str, request: Request, response: aiohttp.ClientResponse, said: bytes) -> str:
        key = "with this key" if self._settings.key else "without a key"
        reason = " ".join(said.decode(errors="replace").split())[:MOST_SAID]
        return f"{address} answers {request.custom_id} with {response.status} {key}: {reason}"


class _Body:
    """What is sent of a request, anew for each try; a sound is fetched once, and held until the answer."""

    def __init__(self, request: Request, sounds: Sounds, held: AsyncExitStack) -> None:
        self._request = request
        self._sounds = sounds
        self._held = held
        self._sound: bytes | None = None

    async def sent(self) -> dict[str, Any]:
        """FormError if there is none."""
        if not takes_form(self._request):
            return {"data": msgspec.json.encode(self._request.body), "headers": {"Content-Type": "application/json"}}
        url, fields = fields_of(self._request)
        if self._sound is None:
            self._sound = await self._held.enter_async_context(self._sounds.at(url))
        return {"data": form_of(self._sound, fields)}
