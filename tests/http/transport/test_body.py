"""Bodies that have come whole before anybody reads them."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Callable
from unittest.mock import Mock

import pytest
from aiohttp import StreamReader, web
from aiohttp.test_utils import make_mocked_request

from actorserve.http.errors import ApiError
from actorserve.http.transport import body as bodies
from actorserve.http.transport.body import LEAST_BODIES, MOST_CHUNKS, AnnouncedLength, BodyBudget, read_body
from tests.http.serving import Answer, Served, serving

BUDGET = BodyBudget(100)


def arrived(
    *parts: bytes, kind: str | None = None, coding: str | None = None, more: dict[str, str] | None = None
) -> web.Request:
    """A request without a Content-Length, whose body is said to be of this kind, and written so."""
    content = StreamReader(Mock(), 1 << 16, loop=asyncio.get_running_loop())
    for part in parts:
        content.feed_data(part)
    content.feed_eof()
    given = {"Content-Type": kind, "Content-Encoding": coding}
    headers = {name: value for name, value in given.items() if value is not None} | (more or {})
    return make_mocked_request("POST", "/v1/completions", headers, payload=content)


async def test_all_of_it_is_read() -> None:
    assert await read_body(arrived(b"ab", b"cd"), 4, BUDGET) == b"abcd"
    assert await read_body(arrived(), 4, BUDGET) == b""


async def test_it_is_too_long() -> None:
    with pytest.raises(ApiError, match="longer than the 3 bytes") as caught:
        await read_body(arrived(b"ab", b"cd"), 3, BUDGET)
    assert caught.value.status == 413


@pytest.mark.parametrize(
    "kind",
    [None, "", "application/json", "Application/JSON ; charset=utf-8", "text/json", "application/vnd.api+json"],
)
async def test_json_by_its_names(kind: str | None) -> None:
    assert await read_body(arrived(b"{}", kind=kind), 4, BUDGET) == b"{}"


@pytest.mark.parametrize("more", [{}, {"Origin": "http://a"}, {"Origin": "null"}, {"Sec-Fetch-Site": "cross-site"}])
@pytest.mark.parametrize(
    "kind",
    [
        *("application/x-www-form-urlencoded", "application/octet-stream", "text/plain; charset=utf-8"),
        *("multipart/form-data; boundary=x", "json"),
    ],
)
async def test_what_is_said_to_be_no_json_is_not_read(kind: str, more: dict[str, str]) -> None:
    """But what curl and aiohttp say of all that is sent without a type, where no page has sent it."""
    if kind.endswith(("urlencoded", "octet-stream")) and not more:
        assert await read_body(arrived(b"{}", kind=kind), 4, BUDGET) == b"{}"
        return
    with pytest.raises(ApiError, match=kind.partition(";")[0]) as caught:
        await read_body(arrived(b"{}", kind=kind, more=more), 4, BUDGET)
    assert (caught.value.status, caught.value.code) == (415, "unsupported_content_type")


@pytest.mark.parametrize(
    ("coding", "write"),
    [
        ("gzip", gzip.compress),
        ("X-GZip", gzip.compress),
        ("DEFLATE", zlib.compress),
        ("deflate", lambda body: zlib.compress(body, wbits=-zlib.MAX_WBITS)),  # without zlib's frame
        ("identity", bytes),
    ],
)
async def test_it_may_be_compressed(coding: str, write: Callable[[bytes], bytes]) -> None:
    sent = write(b"abcd" * 10)
    assert await read_body(arrived(sent[:5], sent[5:], coding=coding), 50, BUDGET) == b"abcd" * 10


async def test_what_is_made_of_it_is_bounded() -> None:
    """A few bytes may say that there are many; of a bomb no more is made than a body may have."""
    bomb = gzip.compress(bytes(100 << 20))
    assert len(bomb) < 200_000
    with pytest.raises(ApiError, match="longer than") as caught:
        await read_body(arrived(bomb, coding="gzip"), 1 << 20, BUDGET)
    assert caught.value.status == 413


GZIP = gzip.compress(b"{}", mtime=0)  # the time would be in the test's name, which all processes have to agree on


RAW = zlib.compress(b"{}", wbits=-zlib.MAX_WBITS)


@pytest.mark.parametrize(
    ("coding", "sent"),
    [
        *(("gzip", sent) for sent in (b"{}", GZIP[:-3], GZIP + b"x", b"")),
        *(("deflate", sent) for sent in (b"{}", RAW[:-1], RAW + b"x", b"", zlib.compress(b"{}")[:-1])),
    ],
)
async def test_what_is_not_what_it_says(coding: str, sent: bytes) -> None:
    with pytest.raises(ApiError, match="Content-Encoding") as caught:
        await read_body(arrived(sent, coding=coding), 100, BUDGET)
    assert caught.value.status == 400


async def test_zstandard_is_taken_with_its_package() -> None:
    zstd = pytest.importorskip("backports.zstd")
    sent = zstd.compress(b"abcd" * 10)
    assert await read_body(arrived(sent[:5], sent[5:], coding="zstd"), 50, BUDGET) == b"abcd" * 10
    bomb = zstd.compress(bytes(100 << 20))
    wide = zstd.compress(bytes(64 << 20), options={zstd.CompressionParameter.window_log: 26})
    for bad, status in ((bomb, 413), (wide, 400), (sent[:-3], 400), (sent + b"x", 400), (b"{}", 400), (b"", 400)):
        with pytest.raises(ApiError) as caught:
            await read_body(arrived(bad, coding="zstd"), 1 << 20, BUDGET)
        assert caught.value.status == status


async def test_without_its_package_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("actorserve.http.transport.body.zstd", None)
    with pytest.raises(ApiError, match=r"gzip or deflate, not zstd.*pip install actorserve\[zstd\]") as caught:
        await read_body(arrived(b"{}", coding="zstd"), 100, BUDGET)
    assert caught.value.status == 415


async def test_other_codings_are_named() -> None:
    with pytest.raises(ApiError, match=r"deflate.*, not br") as caught:
        await read_body(arrived(b"{}", coding="br"), 100, BUDGET)
    assert caught.value.status == 415


# --- bodies that have not come whole -------------------------------------------------------------------------------


BODY = b'{"prompt": "hi"}'


async def in_two_pieces(served: Served, body: bytes) -> Answer:
    """The second is sent when the first was read."""
    client = await served.client()
    client.send("POST", "/tokenize", body[:-1], Content_Length=str(len(body)))
    await client.writer.drain()
    await served.ask("GET", "/health")
    client.raw(body[-1:])
    return await client.answer()


async def test_long_bodies_that_do_not_come_are_counted_and_short_ones_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MOST_UNFINISHED", 0)
    async with serving() as served:
        waiting = [await served.client() for _ in range(LEAST_BODIES)]
        for client in waiting:
            client.send("POST", "/tokenize", BODY.ljust(99_999), Content_Length="100000")
            await client.writer.drain()
        while (answer := await in_two_pieces(served, BODY.ljust(100_000))).status == 200:
            pass  # those before it have not all been read
        assert answer.status == 503 and answer.headers["retry-after"] == "1"
        assert "not come whole" in answer.error["message"] and answer.headers["connection"] == "close"
        assert (await in_two_pieces(served, BODY)).status == 200
        waiting[0].raw(b" ")
        assert (await waiting[0].answer()).status == 200
        assert (await in_two_pieces(served, BODY.ljust(100_000))).status == 200
        for client in waiting[1:]:
            client.raw(b" ")
            assert (await client.answer()).status == 200


@pytest.mark.parametrize("step", [1, 2, 3, 7, 1000])
def test_what_a_chunked_body_announces(step: int) -> None:
    """However it comes in pieces; what is behind its end, or malformed, is not looked at."""
    for end in (b"0\r\n\r\nffff\r\n", b"0;x=y\r\na: b\r\n\r\n", b"what?\r\nffff\r\n", b"\r\nffff\r\n"):
        length = AnnouncedLength()
        body = b"3\r\n9\r\n\r\n00A;name=value\r\n0123456789\r\n" + end
        for at in range(0, len(body), step):
            length.follow(body[at : at + step])
        assert length.size == 13
    length.watch(12, None)
    assert length.is_too_long


def test_no_more_than_so_many_chunks_are_looked_at() -> None:
    length = AnnouncedLength()
    for _ in range(3):
        length.follow(b"1\r\na\r\n" * MOST_CHUNKS)
    assert length.size == MOST_CHUNKS


def test_the_size_of_a_chunk_counts_as_soon_as_its_line_is_there() -> None:
    length = AnnouncedLength()
    length.follow(b"5\r\nabcde\r\nfffffffffffffff")
    assert length.size == 5
    length.follow(b"f\r")
    assert length.size == 5
    length.follow(b"\n")
    assert length.size == 5 + (1 << 64) - 1
