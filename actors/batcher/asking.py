"""Asks one line of a batch, as its owner would, until there is an answer that is one.

Each line has an Idempotency-Key of its own, so that a line that is asked again, here or by the next batcher, gets the
answer that is being made or was made. What the server says is the answer, also a 4xx; where it gives none, or says that
it cannot just now, the line is asked again. Whoever has used up his budget has his answer, too.
"""

from __future__ import annotations

import asyncio
from http import HTTPStatus
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from ..files.batches import BatchRequest
from ..files.lines import BUSY, Request, answer_line, pause_s, response_of
from ..files.owner import write_key
from ..options.config import Config
from ..protocol.wire import UNREADABLE
from ..runtime.way import Way
from .connector import InnerConnector
from .order import MOST_RUNNING

SERVER = "http://server"  # whose name nobody asks for
LOWEST = msgspec.Raw(b"2147483647")  # priority: all others run first
NO_LINES: dict[str, tuple[tuple[object, ...], str]] = {  # fields, values of theirs whose answers are no lines, others
    "stream": ((True,), "false"),
    "background": ((True,), "false"),
    "encoding_format": (("bytes", "bytes_only"), "float or base64"),
}
MOST_MISTAKES = 10  # answers of 500: what ends several actors ends the next ones, too
CONNECT_S = 60.0
MODEL_S = 60.0  # within which the server says whether it has a model
MODEL_TRIES = 5
NO_MODEL = "model_not_found"  # a code of errors


class Asker:
    """For all batches; so many lines at once."""

    def __init__(self, config: Config, way: Way, secret: bytes, most: int) -> None:
        self._secret = secret
        self._by_priority = config.scheduling_policy == "priority"
        self._turns = asyncio.Semaphore(most)
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S)
        # Beside lines, each batch may ask for its model.
        self._session = aiohttp.ClientSession(connector=InnerConnector(way, most + MOST_RUNNING), timeout=timeout)
        self.running = 0

    async def close(self) -> None:
        """Lines that are being asked are broken off."""
        await self._session.close()

    async def ask(self, batch: BatchRequest, number: int, line: Request) -> dict[str, Any]:
        """The line of its answer."""
        if (refused := _refused(line)) is not None:
            return answer_line(line.custom_id, refused, None)
        tries = mistakes = 0
        while True:
            async with self._turns:
                self.running += 1
                try:
                    found = await self._try(batch, number, line)
                finally:
                    self.running -= 1
            mistakes += isinstance(found, Answer) and found.status == HTTPStatus.INTERNAL_SERVER_ERROR
            if isinstance(found, Answer) and (not found.is_busy or mistakes >= MOST_MISTAKES):
                return answer_line(line.custom_id, response_of(found.status, found.request_id, found.said), None)
            await asyncio.sleep(pause_s(found.retry_after if isinstance(found, Answer) else "", tries))
            tries += 1

    async def why_no_model(self, batch: BatchRequest, model: str) -> str:
        """What the server says to its owner of a model that is not there; empty if it is, or if nobody can say."""
        path = f"/v1/models/{quote(model, safe='')}"
        timeout = aiohttp.ClientTimeout(total=MODEL_S)
        for tries in range(MODEL_TRIES):
            found = await self._send("GET", path, self._headers(batch), timeout=timeout)
            if found is not None and not found.is_busy:
                return found.told_of_model if found.status == HTTPStatus.NOT_FOUND else ""
            await asyncio.sleep(pause_s(found.retry_after if found is not None else "", tries))
        return ""

    async def _try(self, batch: BatchRequest, number: int, line: Request) -> Answer | None:
        """None where the connection broke."""
        name = f"{batch.id}-{number}"
        headers = self._headers(batch) | {
            "Content-Type": "application/json",
            "Idempotency-Key": f"{name}-{batch.order}" if batch.is_anthropics else name,  # its id may be used again
            "X-Request-Id": name,
        }
        body = {"priority": LOWEST, **line.body} if self._by_priority else line.body
        return await self._send("POST", line.url, headers, data=msgspec.json.encode(body))

    def _headers(self, batch: BatchRequest) -> dict[str, str]:
        return {"Authorization": f"Bearer {write_key(batch.owner, self._secret)}"}

    async def _send(self, method: str, path: str, headers: dict[str, str], **more: Any) -> Answer | None:
        try:
            url = URL(SERVER + path, encoded=True)
            async with self._session.request(method, url, headers=headers, **more) as answer:
                said, told = await answer.read(), answer.headers
                return Answer(answer.status, told.get("X-Request-Id", ""), told.get("Retry-After", ""), said)
        except (aiohttp.ClientError, TimeoutError, OSError):
            return None


class Answer(msgspec.Struct, frozen=True):
    """What the server has said."""

    status: int
    request_id: str
    retry_after: str
    said: bytes

    @property
    def is_busy(self) -> bool:
        """Is it worth another try? A budget that is used up is not: then nobody says when."""
        spent = self.status == HTTPStatus.TOO_MANY_REQUESTS and not self.retry_after
        return self.status in BUSY and not spent

    @property
    def told_of_model(self) -> str:
        """The message of an error that says that there is no such model; empty if it is another."""
        try:
            error = msgspec.json.decode(self.said, type=_Failure).error
        except UNREADABLE:  # of a proxy, say
            return ""
        return error.message if error.code == NO_MODEL else ""


class _Error(msgspec.Struct):
    message: str
    code: str | None = None


class _Failure(msgspec.Struct):
    error: _Error


def _refused(line: Request) -> dict[str, Any] | None:
    """What a line cannot ask for, since its answer is one line."""
    for name, (values, instead) in NO_LINES.items():
        if name in line.body and _decoded(line.body[name]) in values:
            text = f"{name} must be {instead}: an answer of a batch is a line of a file."
            error = {"message": text, "type": "invalid_request_error", "param": name, "code": None}
            return response_of(HTTPStatus.BAD_REQUEST, "", msgspec.json.encode({"error": error}))
    return None


def _decoded(value: msgspec.Raw) -> object:
    """None of what cannot be read: the server says what is wrong with it."""
    try:
        return msgspec.json.decode(value)
    except UNREADABLE:
        return None
