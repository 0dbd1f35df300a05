"""The sounds that lines of a batch name, from their addresses; of all together so many bytes are held."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from ..files.lines import BUSY, as_text
from .forms import FormError

CONNECT_S = 60.0
LONGEST = 256 << 20  # bytes of a sound: the most that --max-audio-bytes can be
MOST_HELD = 4 * LONGEST  # of all that are fetched and not answered yet
DATA = "data:"


class Sounds:
    """`async with sounds.at(url) as sound:` holds one."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_S)
        self._room = MOST_HELD
        self._freed = asyncio.Event()

    @asynccontextmanager
    async def at(self, url: str) -> AsyncIterator[bytes]:
        """FormError if it cannot be had."""
        if url[: len(DATA)].lower() == DATA:
            yield _in_address(url)
            return
        if not url.lower().startswith(("http://", "https://")):
            raise FormError("file_url must begin with https://, http:// or data:")
        held: list[int] = []
        try:
            while isinstance(found := await self._fetched(url, held), int):
                await self._wait_for(found, held)
            yield found
        finally:
            self._give(held)

    async def _fetched(self, url: str, held: list[int]) -> bytes | int:
        """Or for how many bytes there is no room: that is waited for without a connection, whose time-out is for the
        address alone. `held` is what it has taken of the room, whatever becomes of it.
        """
        try:
            # a session of its own: the server's key is not for others
            async with (
                aiohttp.ClientSession(trust_env=True, timeout=self._timeout) as session,
                session.get(url) as answer,
            ):
                answer.raise_for_status()
                most = _most(answer)
                if most > self._room + sum(held):
                    return most
                self._take(most, held)
                data = bytearray()
                async for piece in answer.content.iter_any():
                    data += piece
                    _check(len(data))
                self._take(len(data), held)
                return bytes(data)
        except aiohttp.ClientResponseError as error:
            passing = error.status in BUSY or error.status >= 500
            after = "" if error.headers is None else error.headers.get("Retry-After", "")
            raise _failed(error, after if passing else None) from None
        except ValueError as error:  # an address that is none, of which idna objects to some
            raise _failed(error, None) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failed(error, "") from None

    async def _wait_for(self, size: int, held: list[int]) -> None:
        """Until there is so much room, which is taken."""
        self._give(held)
        while self._room < size:
            self._freed.clear()
            await self._freed.wait()
        self._take(size, held)

    def _take(self, size: int, held: list[int]) -> None:
        """In place of what is held."""
        self._give(held)
        held.append(size)
        self._room -= size

    def _give(self, held: list[int]) -> None:
        self._room += sum(held)
        held.clear()
        self._freed.set()


def text_of(error: Exception) -> str:
    """For people; it may quote a stranger."""
    return as_text(str(error) or type(error).__name__)


def _failed(error: Exception, retry_after: str | None) -> FormError:
    return FormError(f"file_url cannot be fetched: {text_of(error)}", retry_after)


def _most(answer: aiohttp.ClientResponse) -> int:
    """How many bytes its body may have. FormError if that is too many."""
    told = None if "Content-Encoding" in answer.headers else answer.content_length
    return LONGEST if told is None else _check(told)


def _check(size: int) -> int:
    if size > LONGEST:
        raise FormError(f"file_url is longer than {LONGEST:,} bytes")
    return size


def _in_address(url: str) -> bytes:
    head, _, data = url.partition(",")
    if not head.lower().endswith(";base64"):
        raise FormError("file_url: a data: address is data:TYPE;base64,DATA")
    try:
        return base64.b64decode(data, validate=True)
    except (binascii.Error, ValueError):
        raise FormError("file_url: its base64 cannot be read") from None
