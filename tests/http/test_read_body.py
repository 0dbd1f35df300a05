"""Bodies that have come whole before anybody reads them."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from actorserve.http.bodies import read_body
from actorserve.http.errors import ApiError


def arrived(*parts: bytes) -> web.Request:
    """A request without a Content-Length."""
    content = StreamReader(Mock(), 1 << 16, loop=asyncio.get_running_loop())
    for part in parts:
        content.feed_data(part)
    content.feed_eof()
    return make_mocked_request("POST", "/v1/completions", payload=content)


async def test_all_of_it_is_read() -> None:
    assert await read_body(arrived(b"ab", b"cd"), 4) == b"abcd"
    assert await read_body(arrived(), 4) == b""


async def test_it_is_too_long() -> None:
    with pytest.raises(ApiError, match="longer than the 3 bytes") as caught:
        await read_body(arrived(b"ab", b"cd"), 3)
    assert caught.value.status == 413
