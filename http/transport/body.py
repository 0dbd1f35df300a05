"""Reading a request's body: whole, within its size, its time, and what all those take that have not come whole."""

from __future__ import annotations

import asyncio
import importlib
import re
import sys
import zlib
from typing import Any

from aiohttp import hdrs, web

from ..errors import ApiError, bad_request, overloaded
from ..middleware.context import EXPECTS
from ..settings import printable
from .resume import record_of

try:
    zstd: Any = importlib.import_module("compression.zstd" if sys.version_info >= (3, 14) else "backports.zstd")
except ModuleNotFoundError:  # an extra
    zstd = None
BODY_S = 60.0  # what a client gets to send its body
SHORT = 64 << 10  # bytes of a body that are not counted
COPIES = 2  # of each byte: here, and in the connection's record
MOST_UNFINISHED = 256 << 20  # bytes
LEAST_BODIES = 8  # of the longest that fit in any case
SIZE = re.compile(rb"([0-9a-fA-F]+)[;\s]")  # at the beginning of a chunk
MOST_CHUNKS = 10_000  # that are followed: many small ones cost time, and announce nothing
LONGEST_SIZE_LINE = 256  # bytes of it that are looked at
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
WINDOWS = {"gzip": 16 + zlib.MAX_WBITS, "deflate": zlib.MAX_WBITS}  # of zlib, by their names
ZLIB_HEADER = 2  # bytes
OLDER_NAMES = {"x-gzip": "gzip"}  # RFC 9110, 8.4.1.3
JSON = ("application/json", "text/json")
UNSAID = ("application/x-www-form-urlencoded", "application/octet-stream")  # by curl -d, and by aiohttp of bytes
OF_BROWSERS = ("Origin", "Sec-Fetch-Site")  # a browser sends one of them with each POST of a page
CUT = "The body is not what its Content-Encoding says: it is cut short, or something is behind it."
WINDOW_LOG = 23  # of Zstandard: 8 MiB, which RFC 8878 recommends as the least to take, and no more


class BodyBudget:
    """What bodies take that have not come whole, of all connections together: `most` bytes, and no more.

    Those that are short take nothing of it, so that whoever fills it up is in the way of long ones alone.
    """

    def __init__(self, limit: int) -> None:
        """`limit`: the longest body; some of these are taken in any case."""
        self.longest = limit
        self.most = max(MOST_UNFINISHED, LEAST_BODIES * COPIES * limit)
        self.held = 0

    def grow(self, before: int, size: int) -> None:
        """A body has grown from `before` to `size` bytes; 503 if that is too much."""
        more = _counted(size) - _counted(before)
        if self.held + more > self.most:
            text = "The server holds as many bytes of requests that have not come whole as it takes. Try again soon."
            raise overloaded(text)
        self.held += more

    def forget(self, size: int) -> None:
        """A body of so many bytes has come whole, or nobody waits for it any more."""
        self.held -= _counted(size)


class BudgetShare:
    """Of a body that is passed on in pieces: its beginning stays in the connection's record, and some of it here."""

    def __init__(self, budget: BodyBudget) -> None:
        self._budget = budget
        self._came = self._size = 0

    def grow(self, more: int, kept: int) -> None:
        """So many more bytes have come, and `kept` of all are held here; 503 if that is too much."""
        self._came += more
        size = (min(self._came, self._budget.longest) + kept) // COPIES  # as that of a body that has both
        self._budget.grow(self._size, size)
        self._size = size

    def forget(self) -> None:
        """The body has come, or nobody waits for it any more."""
        self._budget.forget(self._size)
        self._size = 0


def _counted(size: int) -> int:
    return size * COPIES if is_counted(size) else 0


def is_counted(size: int) -> bool:
    """Does a body of so many bytes take anything of the budget?"""
    return size > SHORT


class AnnouncedLength:
    """How long a chunked body will be at least: the sizes of all chunks that have begun.

    Whoever reads the body is told by its deadline, which comes at once when that is too much.
    """

    def __init__(self) -> None:
        self.size = 0
        self._left = 0  # bytes up to the next line with a size
        self._line = b""  # what has come of it
        self._chunks = 0
        self._over = False
        self._most: int | None = None
        self._deadline: asyncio.Timeout | None = None

    def follow(self, data: bytes) -> None:
        """The body goes on. What is malformed ends this; the parser says so."""
        at = 0
        while not self._over:
            step = min(self._left, len(data) - at)
            at, self._left = at + step, self._left - step
            end = data.find(b"\n", at)
            if end < 0 or self._left:
                self._line += data[at : at + LONGEST_SIZE_LINE - len(self._line)]
                break
            self._begin_chunk(self._line + data[at : end + 1])
            at, self._line = end + 1, b""
        self._tell()

    def _begin_chunk(self, line: bytes) -> None:
        found = SIZE.match(line)
        size = int(found[1], 16) if found else 0
        self.size += size
        self._left = size + len(b"\r\n")
        self._chunks += 1
        self._over = not size or self._chunks >= MOST_CHUNKS

    @property
    def is_too_long(self) -> bool:
        return self._most is not None and self.size > self._most

    def watch(self, most: int, deadline: asyncio.Timeout | None) -> None:
        """From now on this deadline comes when it is longer than `most`; None: nobody waits any more."""
        self._most, self._deadline = most, deadline
        self._tell()

    def _tell(self) -> None:
        if self._deadline is not None and self.is_too_long:
            self._deadline.reschedule(0)
            self._deadline = None


def is_long(request: web.BaseRequest) -> bool:
    """Is nothing else taken on a connection whose body is this one, and is not wanted?"""
    return request.content_length is None or request.content_length > SHORT


async def pass_over_body(request: web.Request, response: web.Response) -> None:
    """Before an error is told, the rest of a short body is waited for: with its end known, the connection's next stream
    can go on when its frontend dies.
    """
    if request.content.is_eof() or EXPECTS in request or is_long(request):
        return
    try:
        async with asyncio.timeout(BODY_S):
            async for _ in request.content.iter_any():
                pass
    except (TimeoutError, web.RequestPayloadError):
        response.force_close()


async def read_body(request: web.Request, limit: int, budget: BodyBudget, json: bool = True) -> bytes:
    """The whole body, inflated; 413 as soon as it is too long, 408 when it does not come, 415 if it is compressed in
    another way, or is no JSON and should be, 503 if there are too many that do not come.
    """
    if json:
        check_json(request)
    encoding = request.headers.get(hdrs.CONTENT_ENCODING, "").strip().lower() or "identity"
    encoding = OLDER_NAMES.get(encoding, encoding)
    codings = (*WINDOWS, *(["zstd"] if zstd is not None else []))
    if encoding not in ("identity", *codings):
        known = " or ".join([", ".join(codings[:-1]), codings[-1]])
        text = f"Bodies are taken as they are, or with Content-Encoding {known}, not {printable(encoding)}."
        if encoding == "zstd":
            text += " The server takes it with: pip install actorserve[zstd]."
        raise ApiError(415, text)
    body = await _read_sent(request, limit, budget)
    return body if encoding == "identity" else _decompressed(body, encoding, limit)


def _decompressed(body: bytes, encoding: str, limit: int) -> bytes:
    """As long as any other body at most, however short what was sent is; of Zstandard one frame, with a window that is
    bounded.
    """
    stream: Any
    if encoding == "zstd":
        assert zstd is not None
        stream = zstd.ZstdDecompressor(options={zstd.DecompressionParameter.window_log_max: WINDOW_LOG})
        failure = zstd.ZstdError
    else:
        window = -zlib.MAX_WBITS if encoding == "deflate" and not _is_zlib(body) else WINDOWS[encoding]
        stream, failure = zlib.decompressobj(window), zlib.error
    try:
        made: bytes = stream.decompress(body, limit + 1)
    except failure as error:
        raise bad_request(f"The body is not what its Content-Encoding says: {error}") from None
    if len(made) > limit:
        raise _too_long(limit)
    if not stream.eof or stream.unused_data:
        raise bad_request(CUT)
    return made


def _is_zlib(body: bytes) -> bool:
    """Does it begin as RFC 1950 has it? Some clients send deflate's bits alone (RFC 1951), as browsers take them, too;
    no such ones begin so, but in a stored block with bits that are to be 0.
    """
    return len(body) >= ZLIB_HEADER and body[0] & 0xF == zlib.DEFLATED and int.from_bytes(body[:2]) % 31 == 0


async def _read_sent(request: web.Request, limit: int, budget: BodyBudget) -> bytes:
    if (request.content_length or 0) > limit:
        raise _too_long(limit)
    if request.content.is_eof():  # it came with the head, as most do: nothing is waited for
        body = _read_now(request)
        if len(body) > limit:
            raise _too_long(limit)
        return body
    return await _wait_for(request, limit, budget)


def _read_now(request: web.Request) -> bytes:
    try:
        return request.content.read_nowait()
    except web.RequestPayloadError as error:
        raise malformed_body(error) from None


async def _wait_for(request: web.Request, limit: int, budget: BodyBudget) -> bytes:
    announced: AnnouncedLength | None = getattr(request.protocol, "announced", None)
    parts, size = [], 0
    if EXPECTS in request:
        ask_for(request)
    try:
        async with asyncio.timeout(BODY_S) as deadline:
            if announced is not None:
                announced.watch(limit, deadline)
            async for part in request.content.iter_any():
                if size + len(part) > limit:
                    raise _too_long(limit)
                budget.grow(size, size + len(part))
                size += len(part)
                parts.append(part)
        return b"".join(parts)
    except TimeoutError:
        if announced is not None and announced.is_too_long:
            raise _too_long(limit) from None
        raise ApiError(408, f"The body did not come within {BODY_S:.0f} s.") from None
    except web.RequestPayloadError as error:
        raise malformed_body(error) from None
    finally:
        budget.forget(size)
        parts.clear()  # an exception would keep them until Python's collector comes
        if announced is not None:
            announced.watch(limit, None)


def check_length(body: bytes, limit: int) -> bytes:
    """The body, which was read before it was known for which model it is; 413 if that one takes no such."""
    if len(body) > limit:
        raise _too_long(limit)
    return body


def _too_long(limit: int) -> ApiError:
    return ApiError(413, f"The body is longer than the {limit} bytes that --max-body-bytes allows.")


def malformed_body(error: web.RequestPayloadError) -> ApiError:
    """It does not come as HTTP has it."""
    return bad_request(f"The body is malformed: {error}")


def ask_for(request: web.Request) -> None:
    """The client waits for this before it sends the body."""
    record = record_of(request)
    if record is not None:
        record.interim(CONTINUE)
    elif request.transport is not None:
        request.transport.write(CONTINUE)


def check_json(request: web.Request) -> None:
    """415 for a body that is none, or that a page may have sent."""
    check_kind(request.headers.get(hdrs.CONTENT_TYPE, ""), any(name in request.headers for name in OF_BROWSERS))


def check_kind(given: str, of_page: bool) -> None:
    """What says of itself that it is something else. Forms and plain text are what any site's page may send unasked;
    programs that name no type are made to name one by their libraries, and are no pages.
    """
    kind = given.partition(";")[0].strip().lower()
    if kind in UNSAID and not of_page:
        return
    if kind and kind not in JSON and not kind.endswith("+json"):
        text = f"Bodies are JSON: their Content-Type is application/json, not {printable(kind)[:100]}."
        raise ApiError(415, text, code="unsupported_content_type")
