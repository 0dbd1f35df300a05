"""Frontends die while clients ask again and again on the same connections; what their successors can take at once."""

from __future__ import annotations

import json
import os
import select
import signal

import pytest

from actorserve.actors.protocol.topology import SPARE_SLOTS
from tests.server.connections.test_connections import kill_frontends, read_all, request
from tests.support.client import complete, connect, open_socket
from tests.support.rolling import Load
from tests.support.server import Server

SERVER_OPTIONS = ("--frontends", "2", "--threads", "1", "--max-restarts", "1000")


def test_kept_connections_ask_again_and_again_while_frontends_die(server: Server) -> None:
    """The next request often comes before the handler of the stream before it has ended."""
    load = Load(server, streams=16, tokens=4)
    load.run(lambda: kill_frontends(server, 2))
    assert all(len(texts) == 1 for texts in load.texts.values()) and set(load.answers) == {" Paris."}


def test_kept_connections_go_on_while_frontends_are_terminated(server: Server) -> None:
    """By anybody: the supervisor has not asked for their end. None is closed between two requests either."""
    kept = [connect(server) for _ in range(12)]
    load = Load(server, streams=8, tokens=16)

    def terminate() -> None:
        for _ in range(3):
            kill_frontends(server, 1, signal.SIGTERM)
            assert all("Paris" in complete(connection) for connection in kept)

    load.run(terminate)
    assert all(len(texts) == 1 for texts in load.texts.values()) and set(load.answers) == {" Paris."}
    assert load.connects == load.short
    for connection in kept:
        connection.close()


def test_signals_that_anybody_sends_cost_no_request(server: Server) -> None:
    """SIGTERM is a death for all actors, and SIGINT, which a terminal sends to all, is nothing."""
    load = Load(server, streams=8, tokens=16)
    before = server.actors()
    for name in server.pids().keys() - before:
        os.kill(server.pids()[name], signal.SIGTERM)

    def signal_all() -> None:
        for pid in before.values():
            os.kill(pid, signal.SIGINT)
        for name in before:
            assert server.pids()[name] == before[name]
            os.kill(before[name], signal.SIGTERM)
            server.wait_for(rf"{name} ended \(pid {before[name]}, (killed by SIGTERM|exit status 0)")
            server.wait_for(rf"{name} is up")

    load.run(signal_all)
    assert all(len(texts) == 1 for texts in load.texts.values()) and set(load.answers) == {" Paris."}
    assert load.connects == load.short


@pytest.mark.slow
def test_kept_connections_survive_hundreds_of_deaths(server: Server) -> None:
    load = Load(server, streams=24, tokens=6)
    load.run(lambda: kill_frontends(server, 150))
    assert all(len(texts) == 1 for texts in load.texts.values()) and set(load.answers) == {" Paris."}


@pytest.mark.parametrize("refused", [False, True])
def test_all_slots_were_used_and_a_successor_has_them_at_once(refused: bool) -> None:
    """No renderer answers it yet: it is stopped, and requests wait for it, but not for a slot."""
    with Server("--worker", "scripted", "--max-num-seqs", "2", "--max-num-queued-reqs", "6") as server:
        body: dict[str, object] = {"max_tokens": 1, "user": "", **({"prompt": [1 << 20]} if refused else {})}
        for _ in range(2 + 6 + SPARE_SLOTS):
            connection = open_socket(server)
            connection.sendall(request(body))
            assert read_all(connection).startswith(b"HTTP/1.1 400" if refused else b"HTTP/1.1 200")
        renderer = server.pids()["renderer-0"]
        os.kill(renderer, signal.SIGSTOP)
        server.replace("frontend-0")
        connections = [open_socket(server) for _ in range(8)]
        for connection in connections:
            connection.sendall(request({"max_tokens": 4}))
        watch, load = connect(server), 0
        while load != len(connections) and not select.select(connections, [], [], 0.0)[0]:
            watch.request("GET", "/load")
            load = json.load(watch.getresponse())["server_load"]
        os.kill(renderer, signal.SIGCONT)
        assert all(read_all(connection).startswith(b"HTTP/1.1 200") for connection in connections)
