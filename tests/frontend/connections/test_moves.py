"""Connections that are given to another frontend."""

from __future__ import annotations

import socket
import struct

import pytest
import uvloop

from .lives import ROOM, Socket
from .scenes import ANSWERS, ASKED, bodies, request, scene_of


def test_a_request_is_served_where_its_connection_was_moved() -> None:
    with scene_of() as (scene, client):
        assert client.ask(*ASKED) == ANSWERS
        assert [life.served for life in scene.lives] == [2, 3]


def test_it_is_closed_before_the_supervisor_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    with scene_of() as (scene, client):
        client.begin(request(b"one")[:-1])
        channel, *served = scene.lives[0].sockets
        seen = []

        class Channel:
            def send(self, data: bytes) -> int:
                seen.append([one.fileno() for one in served])
                return channel.send(data)

        monkeypatch.setattr(scene.lives[0].pool, "_channel", Channel())
        assert scene.lives[0].move_all(1) == [True] and not seen
        client.send(b"e")
        scene.until(lambda: client.has(1))
        assert seen == [[-1]] and bodies(client.data) == [b"one"]


def test_nothing_is_written_after_it_was_moved() -> None:
    """By a handler that does not wait for its end, and by what the end brings with it."""
    with scene_of() as (scene, client):
        client.begin(request(b"one")[:-1])
        pool, record = scene.lives[0].pool, scene.lives[0].records()[0]
        assert record.move(1)
        words = pool.answers._map[:], pool.journal._map[:]
        record.stream([9], 1, 1)
        record.note(0, 1)
        record.go_on()
        record.write(b"HTTP/1.1 200 OK\r\n")
        record.keep_no_more()
        record.write(b"HTTP/1.1 200 OK\r\n")
        assert not record.move(1)
        for _ in range(5):
            scene.lives[0].turn()
        assert not scene.lives[0].records() and words == (pool.answers._map[:], pool.journal._map[:])
        client.send(b"e")
        scene.until(lambda: client.has(1))
        assert bodies(client.data) == [b"one"]


def test_a_handler_that_answers_after_it_was_moved() -> None:
    """It is not heard."""
    with scene_of() as (scene, client):
        assert client.ask(b"move, but answer") == [b"move, but answer"]
        assert [life.served for life in scene.lives] == [1, 1]


def test_so_it_is_with_uvloop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Which is what frontends run on."""
    monkeypatch.setattr("tests.frontend.connections.lives.new_loop", uvloop.new_event_loop)
    with scene_of() as (scene, client):
        assert client.ask(*ASKED) == ANSWERS
        assert [life.served for life in scene.lives] == [2, 3]


def test_what_came_behind_goes_along() -> None:
    with scene_of() as (scene, client):
        client.send(request(b"move one") + request(b"two") + request(b"move three"))
        scene.until(lambda: client.has(3))
        assert bodies(client.data) == [b"move one", b"two", b"move three"]
        assert [life.served for life in scene.lives] == [1, 3]


def test_what_the_client_has_not_taken_goes_along() -> None:
    """Of the answer before: it waits in the giver's transport, and the other hands it to the kernel."""
    with scene_of() as (scene, client):
        client.begin(request(b"one")[:-1])
        (*_, served), record = scene.lives[0].sockets, scene.lives[0].records()[0]
        assert isinstance(served, Socket)
        served.room = 30
        client.send(b"e")
        scene.until(lambda: not scene.lives[0].pool.journal.is_begun(0))
        client.begin(request(b"two")[:-1])
        assert record.get_write_buffer_size() and not client.has(1) and record.move(1)
        client.send(b"o")
        scene.until(lambda: client.has(2))
        assert bodies(client.data) == [b"one", b"two"]


def test_a_half_read_body_goes_along() -> None:
    with scene_of() as (scene, client):
        whole = request(b"early and late")
        client.begin(whole[:-5])
        assert scene.lives[0].move_all(1) == [True]
        client.send(whole[-5:])
        scene.until(lambda: client.has(1))
        assert bodies(client.data) == [b"early and late"] and scene.lives[1].served == 1


def test_what_cannot_move_stays() -> None:
    """At rest; once something was given out; when there is more than the journal holds."""
    with scene_of() as (scene, client):
        client.ask(b"one")
        assert scene.lives[0].move_all(1) == [False]
        client.send(request(b"wait")[:-1])
        assert client.ask() == [b"one"]
        client.send(b"t")
        scene.lives[0].records()[0].write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nwait")
        assert scene.lives[0].move_all(1) == [False]
    with scene_of() as (scene, client):
        body = b"move " + b"x" * ROOM
        data = request(body)
        for at in range(0, len(data), 1 << 14):
            client.send(data[at : at + (1 << 14)])
        scene.until(lambda: client.has(1))
        assert bodies(client.data) == [body] and scene.lives[1].served == 0


def test_numbers_beyond_the_journal_cannot_move(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.frontend.connections.lives.KEPT", 0)
    with scene_of() as (scene, client):
        assert client.ask(b"move one", b"two") == [b"move one", b"two"] and scene.lives[1].served == 0


def test_the_target_is_dead(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its successor is handed the connection."""
    with scene_of() as (scene, client):
        scene.call(scene.connections.lost, "frontend-1")
        client.send(request(b"move one"))
        scene.until(lambda: scene.connections._channels["frontend-1"].numbers)
        assert not client.has(1)
        scene.reborn(1)
        scene.until(lambda: client.has(1))
        assert bodies(client.data) == [b"move one"] and scene.lives[1].served == 1


def test_a_frontend_that_does_not_exist(caplog: pytest.LogCaptureFixture) -> None:
    with scene_of() as (scene, client):
        client.begin(request(b"one")[:-1])
        assert scene.lives[0].move_all(7) == [True]
        scene.until(lambda: client.has(1))
        assert client.over and "frontend 7, which does not exist" in caplog.text
        with pytest.raises(ValueError, match="from 0"):
            scene.lives[0].move_all(-1)


def test_a_client_goes_while_its_connection_is_moved() -> None:
    with scene_of() as (scene, client):
        client.begin(request(b"one")[:-1])
        assert scene.lives[0].move_all(1) == [True]
        scene.client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
