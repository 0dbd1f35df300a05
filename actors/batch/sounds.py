"""The sounds that lines of a batch name, from their addresses; of all together so many bytes are held."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp

from .forms import FormError

BUSY = frozenset({408, 429, 500, 502, 503, 504})  # whoever is asked cannot just now
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
            yield await self._fetched(url, held)
        finally:
            self._give(sum(held))

    async def _fetched(self, url: str, held: list[int]) -> bytes:
        """To `held` what it has taken of the room is added, whatever becomes of it."""
        try:
            # a session of its own: the server's key is not for others
            async with (
                aiohttp.ClientSession(trust_env=True, timeout=self._timeout) as session,
                session.get(url) as answer,
            ):
                answer.raise_for_status()
                held.append(await self._take(_most(answer)))
                data = bytearray()
                async for piece in answer.content.iter_any():
                    data += piece
                    _check(len(data))
                return bytes(data)
        except aiohttp.ClientResponseError as error:
            passing = error.status in BUSY or error.status >= 500
            after = "" if error.headers is None else error.headers.get("Retry-After", "")
            raise _failed(error, after if passing else None) from None
        except ValueError as error:  # an address that is none, of which idna objects to some
            raise _failed(error, None) from None
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            raise _failed(error, "") from None

    async def _take(self, size: int) -> int:
        while self._room < size:
            self._freed.clear()
            await self._freed.wait()
        self._room -= size
        return size

    def _give(self, size: int) -> None:
        self._room += size
        self._freed.set()


def text_of(error: Exception) -> str:
    """For people; it may quote bytes of a stranger that are no text, which no line can have."""
    return (str(error) or type(error).__name__).encode(errors="replace").decode()


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
