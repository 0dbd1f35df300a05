"""What WebSockets have in common: who may open one, whose key it goes on with, and how what is generated is told."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from typing import Generic, Protocol, TypeVar

from aiohttp import hdrs, web

from actorserve.actors.accounts.account import Account

from ..errors import ApiError, bad_request
from ..generation.job import Job
from ..middleware.context import ACCOUNT
from ..middleware.edge import allows_origin
from ..settings import Settings, printable
from ..transport.websocket import WebSocketChannel


class HasJob(Protocol):
    """What is told: the answer of a job."""

    job: Job


T = TypeVar("T", bound=HasJob)
ENDING = "The server is about to end. Connect again."


def check_upgrade(request: web.Request, settings: Settings) -> None:
    """400 for what is no WebSocket, 403 for other sites' pages: browsers let any of them open one."""
    if request.headers.get(hdrs.UPGRADE, "").lower() != "websocket":
        raise bad_request("This path is a WebSocket: connect to it by ws:// or wss://.")
    origin = request.headers.get(hdrs.ORIGIN)
    if origin is not None and not allows_origin(settings.allowed_origins, origin):
        raise ApiError(403, f"Pages of {printable(origin)} are not among the --allowed-origins.")


def account_of(request: web.Request, settings: Settings) -> Account | None:
    """Whose key it is, as long as that is one."""
    if ACCOUNT not in request:
        return None
    own = request[ACCOUNT]
    account = settings.accounts.named(own.name)
    if account is None or account.digest != own.digest:
        raise ApiError(401, "The API key is not valid any more.", code="invalid_api_key")
    return account


def counted(count: int, name: str) -> str:
    """For the log."""
    return f"{count} {name}{'' if count == 1 else 's'}"


class Teller(ABC, Generic[T]):
    """Tells a client what is generated, one answer at a time, as it comes; a slow one when it has taken the rest."""

    def __init__(self, channel: WebSocketChannel) -> None:
        self._channel = channel
        self.now: T | None = None  # what is generated
        self._draining: asyncio.Task[None] | None = None  # waits for a slow client

    @abstractmethod
    def tell(self, now: T) -> None:
        """What is new of it, and its end."""

    @abstractmethod
    def finish(self, now: T, error: ApiError | None) -> None:
        """The end of it, which is told; afterwards nothing is generated."""

    def listen(self, now: T) -> None:
        """From now on it is told."""
        now.job.listen(self)
        now.job.done.add_done_callback(self.update)

    def update(self, _: object) -> None:
        """There is more of it."""
        now = self.now
        if now is None or self._draining is not None:
            return
        if self._channel.is_full:
            self._draining = asyncio.get_running_loop().create_task(self._tell_later())
            return
        try:
            self.tell(now)
        except Exception:  # nobody else is there to catch what is raised behind the end of a job
            if self.now is not now:
                raise
            self.finish(now, now.job.give_up())

    async def _tell_later(self) -> None:
        try:
            await self._channel.drained()
        finally:
            self._draining = None
        self.update(None)


def end_of(job: Job) -> ApiError | None:
    """Why it failed, if it did."""
    problem = job.done.exception()
    return problem if isinstance(problem, ApiError) else None
