"""Open files run out: idle connections without a key, a limit that is lowered, and actors that die meanwhile.

Nobody dies of it, and no connection is lost.
"""

from __future__ import annotations

import contextlib
import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from actorserve.actors.observer.attach import attach
from actorserve.actors.supervisor.connections.descriptors import AT_REST, EACH_TEMPLATE, own_descriptors
from tests.support.client import complete, connect
from tests.support.server import FEW_DESCRIPTORS, WAIT_S, Server

SERVER_OPTIONS = ("--frontends", "2", "--threads", "1", "--hang-timeout", "3", "--max-restarts", "100")
HARD = 1024


@contextmanager
def lowered(pid: int) -> Iterator[None]:
    """The process may open nothing more."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (1, before[1]))
    try:
        yield
    finally:
        with contextlib.suppress(ProcessLookupError):  # it was killed for it
            resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


@pytest.mark.parametrize("each", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_idle_connections_up_to_the_limit_and_a_death(each: int) -> None:
    """Twelve hundred of them; whoever dies meanwhile comes up again, and goes on with those that it had."""
    actors = ("--frontends", str(each), "--renderers", str(each), "--detokenizers", str(each))
    with Server(*actors, "--threads", "1", program=FEW_DESCRIPTORS, env={"FAKE_DESCRIPTORS": str(HARD)}) as server:
        assert "the limit of open files, 1024, allows" in server.output
        kept = [connect(server) for _ in range(4)]
        assert all("Paris" in complete(connection) for connection in kept)
        idle = [connect(server) for _ in range(1200)]
        for name in ("frontend-0", "renderer-1", "frontend-1", "worker"):
            server.replace(name)
        assert all("Paris" in complete(connection) for connection in kept)
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < HARD
        for connection in [*idle, *kept]:
            connection.close()
        assert "cannot be started" not in server.output and server.stop() == 0


def test_what_is_counted_on_is_what_is_used(server: Server) -> None:
    """At rest; more is used while actors are born, and there is room for more."""
    seen = attach(pid=server.pid)
    actors, frontends = len(seen.system.actors), len(seen.system.of_kind("frontend"))
    templates = len(seen.system.own_templates)
    room = own_descriptors(seen.system)
    seen.close()
    counted = AT_REST + 3 * actors + frontends + EACH_TEMPLATE * templates
    deadline = time.monotonic() + WAIT_S
    while abs(len(os.listdir(f"/proc/{server.pid}/fd")) - counted) > 2:  # births may just be over
        assert time.monotonic() < deadline, os.listdir(f"/proc/{server.pid}/fd")
        time.sleep(0.05)
    for pid in server.pids().values():
        assert len(os.listdir(f"/proc/{pid}/fd")) < room


def test_a_frontend_without_descriptors_loses_no_connection_and_is_replaced(server: Server) -> None:
    first = server.pids()["frontend-0"]
    with lowered(first):
        connections = [connect(server) for _ in range(60)]
        assert all("Paris" in complete(connection) for connection in connections)
        while server.pids().get("frontend-0") == first:  # clients go on coming
            connections.append(connect(server))
            assert "Paris" in complete(connections[-1])
        server.wait_for(r"frontend-0 ended .* it had no descriptor for connections")
    server.wait_for("frontend-0 is up")
    assert all("Paris" in complete(connection) for connection in connections)
    for connection in connections:
        connection.close()


def test_a_supervisor_without_descriptors_waits(server: Server) -> None:
    """It sees deaths all the same, and starts them again when it can; what was kept goes on."""
    kept = [connect(server) for _ in range(4)]
    assert all("Paris" in complete(connection) for connection in kept)
    with lowered(server.pid):
        for name in ("renderer-0", "frontend-0", "worker", "template", "template-worker"):
            os.kill(server.pids()[name], signal.SIGKILL)
        for name in ("renderer-0", "frontend-0", "worker"):
            server.wait_for(f"{name} cannot be started yet: .*Too many open files; it is tried again", since_start=True)
        waiting = connect(server)  # in the kernel's queue
    for name in ("renderer-0", "frontend-0", "worker"):
        server.wait_for(f"{name} cannot be started yet", since_start=True)
        server.wait_for(f"{name} is up")  # behind that
    for connection in (*kept, waiting):
        assert "Paris" in complete(connection)
        connection.close()


def test_a_limit_that_leaves_no_room_is_said_at_once() -> None:
    with Server(program=FEW_DESCRIPTORS, env={"FAKE_DESCRIPTORS": "80"}, wait=False) as server:
        assert server.wait() == 2
        (line,) = server.read_all().splitlines()
        assert line.startswith("actorserve: error: 5 actors and 8 connections need ")
        assert line.endswith(" open files, and the limit (ulimit -n) is 80: raise it, or start fewer actors")
