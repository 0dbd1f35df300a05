"""Bodies that have come whole before anybody reads them."""

from __future__ import annotations

import asyncio
from unittest.mock import Mock

import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from actorserve.http.bodies import read_body
from actorserve.http.errors import ApiError


def arrived(*parts: bytes, kind: str | None = None) -> web.Request:
    """A request without a Content-Length, whose body is said to be of this kind."""
    content = StreamReader(Mock(), 1 << 16, loop=asyncio.get_running_loop())
    for part in parts:
        content.feed_data(part)
    content.feed_eof()
    headers = {} if kind is None else {"Content-Type": kind}
    return make_mocked_request("POST", "/v1/completions", headers, payload=content)


async def test_all_of_it_is_read() -> None:
    assert await read_body(arrived(b"ab", b"cd"), 4) == b"abcd"
    assert await read_body(arrived(), 4) == b""


async def test_it_is_too_long() -> None:
    with pytest.raises(ApiError, match="longer than the 3 bytes") as caught:
        await read_body(arrived(b"ab", b"cd"), 3)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    "kind",
    [None, "", "application/json", "Application/JSON ; charset=utf-8", "text/json", "application/vnd.api+json"],
)
async def test_json_by_its_names(kind: str | None) -> None:
    assert await read_body(arrived(b"{}", kind=kind), 4) == b"{}"


@pytest.mark.parametrize(
    "kind",
    ["application/x-www-form-urlencoded", "text/plain; charset=utf-8", "multipart/form-data; boundary=x", "json"],
)
async def test_what_is_said_to_be_no_json_is_not_read(kind: str) -> None:
    with pytest.raises(ApiError, match=kind.partition(";")[0]) as caught:
        await read_body(arrived(b"{}", kind=kind), 4)
    assert (caught.value.status, caught.value.code) == (415, "unsupported_content_type")
