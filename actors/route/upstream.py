"""One request to one replica: what is sent, what is passed back, and what its failures mean."""

from __future__ import annotations

import errno
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

import aiohttp
from multidict import CIMultiDict

from .replica import Replica
from .request import RoutedRequest
from .settings import RouteSettings
from .trails.trail import TRAIL

HOP_BY_HOP = frozenset(
    "connection keep-alive proxy-authenticate proxy-authorization te trailer transfer-encoding upgrade".split()
)
OURS = "x-actorserve-"  # heads between router and replica, which neither clients send nor see
NOT_SENT = HOP_BY_HOP | {"host", "content-length", "content-encoding", "expect"}
NOT_PASSED = HOP_BY_HOP | {"content-length", "date", "server"}
PAUSE_S = 1.0  # before another try, where nothing else is said
LEAST_PAUSE_S = 0.1
BUSY = (429, 503)  # this replica can, but not now
GATEWAY = (502, 503, 504)  # this replica cannot, and another one may


def is_own(error: BaseException) -> bool:
    """Is it the router itself that can open no connection? That says nothing of the replica."""
    return isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE)


def pause_of(headers: Mapping[str, str]) -> float:
    """For how long a replica that is busy says that it is so, in seconds."""
    told = headers.get("Retry-After", "")
    return max(LEAST_PAUSE_S, float(told)) if told.isdecimal() else PAUSE_S


class Failed(Exception):
    """Nothing of an answer has come, or not all of one that is passed on whole; another replica may be asked.

    `answer` is what the replica said, where it has said something: the client gets it if nobody else can answer.
    """

    def __init__(self, reason: str, answer: Whole | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.answer = answer


class NotNow(Failed):
    """The replica is as good as any: it may be asked again after so many seconds."""

    def __init__(self, reason: str, seconds: float) -> None:
        super().__init__(reason)
        self.seconds = seconds


@dataclass
class Whole:
    """An answer that has come in full."""

    status: int
    headers: CIMultiDict[str]
    body: bytes


def sent_headers(given: Mapping[str, str], peer: str | None, key: str | None) -> CIMultiDict[str]:
    """Of a client's heads, those that the replica gets."""
    named = {name.strip().lower() for name in given.get("Connection", "").split(",")}
    headers = CIMultiDict(
        (name, value)
        for name, value in given.items()
        if (low := name.lower()) not in NOT_SENT and low not in named and not low.startswith(OURS)
    )
    if peer:
        before = headers.get("X-Forwarded-For")
        headers["X-Forwarded-For"] = f"{before}, {peer}" if before else peer
    if key:
        headers.popall("X-Api-Key", None)
        headers["Authorization"] = f"Bearer {key}"
    return headers


def passed_headers(given: Mapping[str, str]) -> CIMultiDict[str]:
    """Of a replica's heads, those that the client gets."""
    return CIMultiDict(
        (name, value)
        for name, value in given.items()
        if (low := name.lower()) not in NOT_PASSED and not low.startswith(OURS)
    )


class Upstream:
    """Asks replicas."""

    def __init__(self, settings: RouteSettings, session: aiohttp.ClientSession) -> None:
        self._settings, self._session = settings, session

    @asynccontextmanager
    async def ask(
        self, replica: Replica, asked: RoutedRequest, path: str = "", body: bytes | None = None
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """The head of its answer. Failed where none comes."""
        replica.pending += asked.size
        waits = True
        try:
            sent = CIMultiDict(asked.headers)
            if asked.moves:
                sent[TRAIL] = "1"
            request = self._session.request(
                asked.method,
                replica.address + (path or asked.path),
                data=asked.body if body is None else body,
                headers=sent,
                allow_redirects=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
            )
            try:
                response = await request
            except (aiohttp.ClientError, OSError, TimeoutError) as error:
                if is_own(error):
                    raise NotNow("no open files are left", PAUSE_S) from error
                raise Failed(f"{type(error).__name__}") from error
            replica.pending -= asked.size
            waits = False
            try:
                replica.answered(response.status, self._settings.breaker_errors, self._settings.breaker_seconds)
                yield response
            finally:
                response.close()
        finally:
            if waits:
                replica.pending -= asked.size


async def read_whole(
    response: aiohttp.ClientResponse, most: int, hold: Callable[[int], None] = lambda size: None
) -> Whole:
    """All of an answer. Failed where it breaks off. `hold` is told of its bytes so far, and may refuse them."""
    parts, size = [], 0
    try:
        async for part in response.content.iter_any():
            parts.append(part)
            size += len(part)
            hold(size)
            if size > most:
                raise Failed(f"an answer of more than {most} bytes")
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        raise Failed(f"{type(error).__name__} in an answer") from error
    return Whole(response.status, passed_headers(response.headers), b"".join(parts))
