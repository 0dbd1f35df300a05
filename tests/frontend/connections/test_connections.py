"""The hand-over of connections between supervisor and frontends, with frontends that die wherever that is telling."""

from __future__ import annotations

import contextlib
import gc
import os
import socket
import time
from collections.abc import Callable

import pytest

from actorserve.actors.frontend.connections.framing import behind_first
from actorserve.actors.frontend.connections.pool import ConnectionPool
from actorserve.actors.frontend.connections.protocol import RecordedProtocol
from actorserve.actors.frontend.connections.upgrade import UpgradeLog
from actorserve.actors.protocol.sockets.connection_handover import (
    GIVEN_BYTES,
    MOST_GIVEN,
    read_given,
    reset_when_closed,
)
from actorserve.http.transport import header_timeout
from actorserve.http.transport.body import CONTINUE
from tests.support.selection import slow

from .lives import Killed, Lethal
from .scenes import ANSWERS, ASKED, CHUNKED, STREAMED, Client, bodies, request, scene_of

pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited")


# Hundreds of places, of the first frontend and of the second one, to which connections are moved: every fifth or so is
# tried by each run, all of them where there is time.
PLACES = pytest.mark.parametrize(("victim", "step"), [(0, 5), (1, 7), *slow((0, 1), (1, 1))])


@PLACES
def test_a_death_anywhere_costs_nothing(victim: int, step: int) -> None:
    """Whatever was done when it died, the successor goes on: each answer comes once, and the connection stays."""
    dry = Lethal()
    with scene_of(dry, victim) as (_, client):
        client.ask(*ASKED)
    assert len(dry.telling) > 250
    kills, places = 0, dry.telling[::step]
    for count, at in enumerate(places):
        if count % 40 == 0:
            gc.collect()  # journals and answers that nobody refers to hold descriptors
        with scene_of(Lethal(at), victim) as (scene, client):
            assert client.ask(*ASKED) == ANSWERS and not client.over
        kills += scene.kills
    assert kills > len(places) - 20  # what comes last is not the same each time


@pytest.mark.parametrize("step", [5, *slow(1)])
def test_a_death_anywhere_costs_nothing_to_who_asks_before_the_handler_has_ended(step: int) -> None:
    """The next request, or one or two of its three pieces, is read while the last byte of the stream is out already."""
    asked = [b"stream4", b"stream20", b"three"]
    dry = Lethal()
    with scene_of(dry) as (_, client):
        client.ask(*asked)
    assert len(dry.telling) > 150
    for count, at in enumerate(dry.telling[::step]):
        if count % 40 == 0:
            gc.collect()
        with scene_of(Lethal(at)) as (_, client):
            assert client.ask(*asked) == [STREAMED, STREAMED, b"three"] and not client.over


def test_an_idle_connection_is_not_taken_for_a_new_one_by_a_successor(monkeypatch: pytest.MonkeyPatch) -> None:
    """New ones have less time to begin than those behind an answer. A head that is begun has its own."""
    monkeypatch.setattr(header_timeout, "HEAD_S", 0.05)
    with scene_of() as (scene, client):
        client.ask(b"one")
        scene.reborn(0)
        scene.until(lambda: scene.lives[0].records())
        over = time.monotonic() + 0.2
        scene.until(lambda: time.monotonic() > over, 10**9)
        assert client.ask(b"two")[1:] == [b"two"] and not client.over
        scene.reborn(0)
        scene.until(lambda: scene.lives[0].records())
        client.send(request(b"three")[:20])
        said = bytearray()

        def is_refused() -> bool:
            with contextlib.suppress(BlockingIOError):
                said.extend(scene.client.recv(1 << 16))
            return b"HTTP/1.1 408 " in said

        scene.until(is_refused, 10**9)


@PLACES
def test_a_death_anywhere_costs_nothing_to_who_is_told_to_continue(victim: int, step: int) -> None:
    """That is no part of an answer, and is said once; connections are moved before and behind it."""
    dry = Lethal()
    with scene_of(dry, victim) as (_, client):
        client.ask_expecting(*ASKED)
    assert len(dry.telling) > 200
    for count, at in enumerate(dry.telling[::step]):
        if count % 40 == 0:
            gc.collect()
        with scene_of(Lethal(at), victim) as (_, client):
            assert client.ask_expecting(*ASKED) == ANSWERS and not client.over
            assert client.data.count(CONTINUE) == len(ASKED)


def test_what_the_client_has_not_taken_of_an_interim_answer_is_written_by_the_successor() -> None:
    with scene_of() as (scene, client):
        scene.until(lambda: scene.lives[0].records())
        scene.lives[0].sockets[-1].room = 0  # type: ignore[attr-defined]
        head, _, _ = request(b"one", b"Expect: 100-continue\r\n").partition(b"one")
        client.begin(head)
        scene.until(lambda: scene.lives[0].records()[0].get_write_buffer_size())
        assert not client.has(1) and not client.data
        scene.reborn(0)
        scene.until(lambda: client.has(1) or client.data)
        assert client.data == CONTINUE
        client.send(b"one")
        scene.until(lambda: client.has(1))
        assert bodies(client.data) == [b"one"] and client.data.count(CONTINUE) == 1


@pytest.mark.parametrize(
    ("first", "pieces"),
    [
        (b"stream", [request(b"stream") + request(b"two")]),
        (b"pause9", [request(b"pause9"), request(b"two")]),  # while the first is answered
        (b"stream20", [request(b"stream20") + request(b"two")[:30], request(b"two")[30:]]),  # before its handler ends
    ],
)
def test_a_death_anywhere_costs_who_does_not_wait_for_answers_one_moment(first: bytes, pieces: list[bytes]) -> None:
    """While the second request is put in its place nobody can go on; else each answer comes once."""

    def ask(client: Client) -> None:
        client.send(pieces[0])
        if b"pause" in first:
            client.scene.until(lambda: any(life.served for life in client.scene.lives))
        if b"stream20" in first:
            client.scene.until(lambda: client.has(1))
        for piece in pieces[1:]:
            client.send(piece)
        client.scene.until(lambda: client.has(2))
        if not client.over:
            client.ask(b"three")

    dry = Lethal()
    with scene_of(dry) as (_, client):
        ask(client)
    answers = [STREAMED if first.startswith(b"stream") else first, b"two", b"three"]
    lost, tried = [], dry.telling[::2]
    for at in tried:
        with scene_of(Lethal(at)) as (_, client):
            with contextlib.suppress(ConnectionError):  # it is reset while the client sends
                ask(client)
            found = bodies(client.data)
            assert found == answers[: len(found)]
            if len(found) < len(answers):
                assert client.over
                lost.append(at)
    start = tried.index(lost[0])
    assert tried[start : start + len(lost)] == lost and len(lost) < 5


@pytest.mark.parametrize("piece", [0, 1, 2])
def test_a_death_before_anybody_knows_what_the_kernel_has_read(monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    """The bytes are gone from the kernel and in the journal already."""
    know, pieces = RecordedProtocol.buffer_updated, 0

    def die(self: RecordedProtocol, nbytes: int) -> None:
        nonlocal pieces
        pieces += 1
        if pieces == piece + 1:
            raise Killed
        know(self, nbytes)

    monkeypatch.setattr(RecordedProtocol, "buffer_updated", die)
    with scene_of() as (scene, client):
        assert client.ask(b"one", b"two") == [b"one", b"two"] and not client.over and scene.kills == 1


def test_no_descriptor_is_left(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The kernel drops it on the way, be it new or a predecessor's: it is handed over again, and nothing is lost."""
    drops: list[int] = [1] * 6

    def recv_fds(channel: socket.socket, *sizes: int) -> tuple[bytes, list[int], int, None]:
        data, fds, flags, _ = socket.recv_fds(channel, *sizes)
        if fds and drops:
            drops.pop()
            os.close(fds.pop())
        return data, fds, flags, None

    monkeypatch.setattr("actorserve.actors.supervisor.connections.pool.PAUSE_S", 0.0)
    monkeypatch.setattr("tests.frontend.connections.scenes.recv_fds", recv_fds)
    with scene_of() as (scene, client):
        assert client.ask(b"one") == [b"one"] and not drops
        drops += [1] * 6
        for index in range(2):
            scene.reborn(index)
        assert client.ask(b"two") == [b"one", b"two"] and not drops and not client.over
        assert "no descriptor left" in caplog.text


def test_a_request_in_chunks_comes_to_rest_only_when_nothing_is_behind() -> None:
    """Both ends look alike."""
    with scene_of() as (scene, client):
        client.send(CHUNKED + CHUNKED.replace(b"3\r\none", b"4\r\nwait"))
        scene.until(lambda: client.has(1) and scene.lives[0].served == 2)
        scene.reborn(0)
        scene.until(lambda: scene.lives[0].served)
        assert scene.lives[0].served == 1 and bodies(client.data) == [b"one"] and not client.over


@pytest.mark.parametrize("last", [1, 2, 4])
def test_a_request_in_chunks_comes_to_rest_if_its_end_comes_in_pieces(last: int) -> None:
    with scene_of() as (scene, client):
        client.send(CHUNKED[:-last])
        scene.until(lambda: scene.lives[0].served)
        client.send(CHUNKED[-last:])
        scene.until(lambda: client.has(1))
        client.ask(b"two")
        scene.reborn(0)
        assert client.ask(b"three") == [b"one", b"two", b"three"] and not client.over


def test_a_request_behind_an_answered_one_survives_two_deaths() -> None:
    """The first successor puts it in its place, the second reads it there."""
    with scene_of() as (scene, client):
        behind = request(b"wait")
        client.send(request(b"one") + behind[:30])
        scene.until(lambda: client.has(1))
        scene.reborn(0)
        scene.until(lambda: scene.lives[0].records())
        client.send(behind[30:])
        scene.until(lambda: scene.lives[0].served)
        scene.reborn(0)
        scene.until(lambda: scene.lives[0].served)
        assert bodies(client.data) == [b"one"] and not client.over


def test_a_stream_may_be_gone_on_with_until_its_handler_says_so() -> None:
    """Also behind the moment in which its connection is there."""
    with scene_of() as (scene, client):
        client.send(request(b"stream20"))
        scene.until(lambda: client.has(1) or b"a\r\n" in client.data)
        scene.reborn(0)
        frontend = scene.lives[0]
        scene.until(lambda: frontend.records() and frontend.records()[0] is not None)
        (record,) = frontend.records()
        before = record.predecessor
        seen = [frontend.pool.may_go_on]
        scene.until(lambda: client.has(1))
        seen.append(frontend.pool.may_go_on)
        record.predecessor = before  # as of a handler that has not come so far
        seen.append(frontend.pool.may_go_on)
        assert before is not None and seen == [True, False, True] and not frontend.pool.is_adopting
        record.go_on()


@pytest.mark.parametrize("leaves", ["behind it", "before it"])
def test_slots_of_a_client_that_went_with_its_frontend_are_given_up(leaves: str) -> None:
    """As soon as its connection has come: nobody went on from them. Those of who has gone on are not."""
    with scene_of() as (scene, client):
        client.send(request(b"stream20"))
        scene.until(lambda: client.has(1) or b"a\r\n" in client.data)
        if leaves == "behind it":
            scene.reborn(0)
            scene.until(lambda: client.has(1))
            reset_when_closed(scene.client)
            scene.client.close()
            scene.until(lambda: not scene.lives[0].records())
            assert not scene.lives[0].given_up
        else:
            reset_when_closed(scene.client)
            scene.client.close()
            scene.reborn(0)
            scene.until(lambda: scene.lives[0].given_up)
            assert scene.lives[0].given_up == [7]


@pytest.mark.parametrize("lines", [b"\r\n", b"\r\n" * 2, b"\r\n" * 3, b"\n" * 5])
@pytest.mark.parametrize("pieces", [1, 2])
def test_empty_lines_before_a_request_are_none(lines: bytes, pieces: int) -> None:
    """Though they look like a head's end: nobody answers again what was answered."""
    with scene_of() as (scene, client):
        client.send(lines if pieces == 2 else lines + request(b"one"))
        if pieces == 2:
            scene.until(lambda: any(one._read for one in scene.lives[0].server.connections))  # type: ignore[attr-defined]
            client.send(request(b"one"))
        scene.until(lambda: client.has(1))
        scene.reborn(0)
        client.send(lines + request(b"two"))
        scene.until(lambda: client.has(2))
        assert bodies(client.data) == [b"one", b"two"] and scene.lives[0].served == 1 and not client.over


def test_an_early_answer_is_not_the_end_of_a_body() -> None:
    """Half of one whose bytes look like an end."""
    with scene_of() as (scene, client):
        client.send(CHUNKED.replace(b" / ", b" /early ").partition(b"3\r\none")[0] + b"5\r\n0\r\n\r\n")
        scene.until(lambda: client.has(1))
        scene.reborn(0)
        scene.until(lambda: client.has(2))
        assert client.over and bodies(client.data) == [b"early"]


@pytest.mark.parametrize(
    ("data", "behind"),
    [
        (request(b"one"), b""),
        (request(b"one") + b"GET", b"GET"),
        (b"\r\n\r\n" + request(b"one"), b""),
        (request(b"one")[:-1], None),
        (CHUNKED, b""),
        (CHUNKED + b"GET", b"GET"),
        (CHUNKED + CHUNKED, CHUNKED),
        (CHUNKED.replace(b"one", b"0\r\n"), b""),
        (CHUNKED[:-1], None),
        (CHUNKED[:-5], None),
        (CHUNKED[:-2] + b"X: y\r\n\r\n", None),
        (b"GET / HTTP/1.1\r\n", None),
    ],
)
def test_what_stands_behind_an_answered_request(data: bytes, behind: bytes | None) -> None:
    assert behind_first(data) == behind


class FullChannel:
    """Takes a message only now and then."""

    def __init__(self) -> None:
        self.messages: list[bytes] = []
        self.tries = 0

    def send(self, data: bytes) -> None:
        self.tries += 1
        if self.tries % 3:
            raise BlockingIOError
        self.messages.append(data)


async def test_what_is_given_back_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long the supervisor does not read, and however much there is."""
    pool = object.__new__(ConnectionPool)
    channel = FullChannel()
    later: list[Callable[[], None]] = []

    class Loop:
        def call_soon(self, callback: Callable[[], None]) -> None:
            later.append(callback)

        def call_later(self, delay: float, callback: Callable[[], None]) -> None:
            later.append(callback)

    vars(pool).update(
        settled=lambda number: None,
        _channel=channel,
        _given=[],
        _numbers=set(),
        _secret=set(),
        _loop=Loop(),
        _connections={},
        reserved=set(),
        upgrades=UpgradeLog(),
    )
    pairs = [(number, number % 3) for number in range(2 * MOST_GIVEN + 10)]
    for pair in pairs[:-5]:
        pool.lost(*pair)
    while later:
        later.pop(0)()
        assert len(later) <= 1
        if channel.tries == 4:
            for pair in pairs[-5:]:
                pool.lost(*pair)
    assert [pair for message in channel.messages for pair in read_given(message)] == pairs
    assert len(channel.messages) == 3 and max(map(len, channel.messages)) == GIVEN_BYTES
