"""The parts of the relay of HTTP/2 that know no connection: lengths of frames, heads, and the way to frontends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from actorserve.actors.protocol.sockets.relay_wire import HERE, NONE_LEFT
from actorserve.actors.runtime.way import Way, WayClosed
from actorserve.actors.supervisor.connections.http2.frames import PREFACE, Frames, Misused
from actorserve.actors.supervisor.connections.http2.heads import BadHead, to_answer, to_request
from actorserve.actors.supervisor.connections.inner import make_pair

ASKED = [(b":method", b"POST"), (b":path", b"/a?b=c"), (b":scheme", b"http"), (b":authority", b"there")]
WAIT_S = 30.0


def frame(length: int, kind: int = 0, stream: int = 1, payload: bytes = b"") -> bytes:
    head = length.to_bytes(3, "big") + bytes([kind, 0]) + stream.to_bytes(4, "big")
    return head + payload + b"\xff" * (length - len(payload))


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_frames_are_as_long_as_they_say(step: int) -> None:
    """However they are cut into what is read; it is seen with the third byte of the one that is too long."""
    good = PREFACE + frame(0) + frame(7) + frame(100)
    frames = Frames(100)
    assert b"".join(frames.take(good[at : at + step]) for at in range(0, len(good), step)) == good
    with pytest.raises(Misused):
        frames.take((101).to_bytes(3, "big"))


@pytest.mark.parametrize("step", [1, 2, 5, 1000])
def test_a_goodbye_without_an_error_is_no_end(step: int) -> None:
    """Those with one, of a stream or too short are for h2 to judge."""
    last = (5).to_bytes(4, "big")
    others = [frame(8, 7, 0, last + b"\0\0\0\2"), frame(8, 7, 1, last + bytes(4)), frame(4, 7, 0, last), frame(17)]
    frames = Frames(100)
    before, goodbye = PREFACE + b"".join(others), frame(20, 7, 0, last + bytes(4))
    assert b"".join(frames.take(before[at : at + step]) for at in range(0, len(before), step)) == before
    assert not frames.has_goodbye
    data = goodbye + others[-1]
    assert b"".join(frames.take(data[at : at + step]) for at in range(0, len(data), step)) == others[-1]
    assert frames.has_goodbye


def test_a_head_becomes_one_of_http_1_1() -> None:
    lines = [(b"cookie", b"a=1"), (b"x-own", b"2"), (b"cookie", b"b=2"), (b"te", b"trailers")]
    request = to_request([*ASKED, *lines], ends=False, most=10)
    assert (request.method, request.target) == (b"POST", b"/a?b=c")
    assert dict(request.headers.raw_items()) == {
        b"host": b"there",
        b"x-own": b"2",
        b"cookie": b"a=1; b=2",
        b"transfer-encoding": b"chunked",
        b"connection": b"close",
    }
    with_length = to_request([*ASKED, (b"content-length", b"3")], ends=False, most=10)
    assert b"transfer-encoding" not in dict(with_length.headers)
    assert b"transfer-encoding" not in dict(to_request(ASKED, ends=True, most=10).headers)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        ([*ASKED, *((b"x", b"y"),) * 5], 431),
        ([(b":method", b"CONNECT"), (b":authority", b"there")], 501),
        ([(b":method", b"GET"), (b":path", b"/a b")], 400),
        ([(b":method", b"GET"), (b":path", b"/a\r\nx: y")], 400),
        ([*ASKED, (b"content-length", b"three")], 400),
    ],
)
def test_what_cannot_be_said_in_http_1_1_is_refused(head: list[tuple[bytes, bytes]], status: int) -> None:
    with pytest.raises(BadHead) as refused:
        to_request(head, ends=True, most=4)
    assert refused.value.status == status


def test_what_is_a_connections_own_is_not_passed_on() -> None:
    headers = [(b"connection", b"close"), (b"transfer-encoding", b"chunked"), (b"x-own", b"1")]
    assert to_answer(200, headers) == [(b":status", b"200"), (b"x-own", b"1")]


@pytest_asyncio.fixture
async def way() -> AsyncIterator[tuple[Way, socket.socket]]:
    """And the supervisor's end."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    theirs.settimeout(WAIT_S)
    with ours, theirs:
        yield Way(ours), theirs


@pytest.mark.asyncio
async def test_connections_come_in_the_order_of_asks(way: tuple[Way, socket.socket]) -> None:
    """Also where one has gone in between, whose connection is closed, or there is none."""
    relays, supervisors = way
    asks = [asyncio.ensure_future(relays.open(f"10.0.0.{number}")) for number in range(4)]
    asked = [await asyncio.to_thread(supervisors.recv, 100) for _ in asks]
    assert asked == [f"10.0.0.{number}".encode() for number in range(4)]
    asks[1].cancel()
    kept = []
    for number in range(4):
        theirs, ours = make_pair()
        with theirs:
            kept.append(ours)
            socket.send_fds(supervisors, [NONE_LEFT if number == 2 else HERE], [] if number == 2 else [theirs.fileno()])
    first, gone, none_left, last = await asyncio.gather(*asks, return_exceptions=True)
    assert isinstance(gone, asyncio.CancelledError) and isinstance(none_left, WayClosed)
    for made, end in ((first, kept[0]), (last, kept[3])):
        assert isinstance(made, socket.socket)
        assert made.getpeername() == end.getsockname()
        made.close()
    for end in kept:  # nobody else has one
        end.settimeout(WAIT_S)
        assert await asyncio.to_thread(end.recv, 1) == b""
        end.close()


@pytest.mark.asyncio
async def test_who_waits_when_the_server_ends_is_told(way: tuple[Way, socket.socket]) -> None:
    relays, supervisors = way
    asks = [asyncio.ensure_future(relays.open("10.0.0.1")) for _ in range(100)]  # more than are asked at once
    await asyncio.to_thread(supervisors.recv, 100)
    supervisors.close()
    answers = await asyncio.wait_for(asyncio.gather(*asks, return_exceptions=True), WAIT_S)
    assert all(isinstance(answer, WayClosed) for answer in answers) and relays.closed.is_set()
