"""How a server with played actors ends: in order, once more, by force, or with its supervisor."""

from __future__ import annotations

import os
import re
import signal
from contextlib import closing
from pathlib import Path

import pytest

from actorserve.actors.observer.ask import AskError, ask
from actorserve.actors.observer.attach import attach, choose, find_servers
from actorserve.actors.protocol.sockets.control_wire import DRAIN, DrainRequest

from .launches import NAMES, Launch


def test_a_stop_while_an_actor_starts_again(launch: Launch) -> None:
    with launch(lives={"renderer-0": ["serve", "hang"]}, stop_s=1.5) as server:
        os.kill(server.pids()["renderer-0"], signal.SIGKILL)
        server.wait_for("hanging")
        assert server.stop() == 0
        assert "renderer-0 has not ended after 1.5 s and is killed" in server.read_all()


def test_an_actor_that_does_not_stop_is_killed(launch: Launch) -> None:
    with launch("--shutdown-timeout", "0.2", lives={"frontend-0": ["deaf"]}, stop_s=1.5) as server:
        assert server.stop() == 0
        said = server.read_all()
        assert "frontend-0: requests have not ended after 0.2 s and get an error" in said
        assert "frontend-0 has not ended after 1.5 s and is killed" in said


def supervisor_state(pid: int) -> str:
    with closing(attach(pid=pid)) as attached:
        return attached.look().actor("supervisor").state


def test_a_start_that_waits_is_seen(launch: Launch) -> None:
    with launch(lives={"renderer-0": ["hang"]}, wait=False, stop_s=1.5) as server:
        server.wait_for("hanging")
        assert supervisor_state(server.pid) == "starting"
        assert server.stop() == 0


def test_the_drain_waits_and_what_is_behind_goes_on(launch: Launch, tmp_path: Path) -> None:
    with launch(lives={"frontend-0": ["drain"]}) as server:
        assert supervisor_state(server.pid) == "ready"
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        assert supervisor_state(server.pid) == "draining"
        assert set(server.pids()) == NAMES
        server.replace("worker")
        (tmp_path / "drained").touch()
        server.wait_for("drained")
        assert server.wait() == 0


def test_a_second_signal_ends_at_once(launch: Launch) -> None:
    with launch(lives={"frontend-0": ["drain"]}) as server:
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        server.signal(signal.SIGTERM)
        assert server.wait() == 1
        assert "drained" not in server.read_all()


def test_the_end_of_a_terminal_is_told_twice_and_forces_nothing(launch: Launch, tmp_path: Path) -> None:
    """The shell signals its jobs, and the kernel the foreground group."""
    with launch(lives={"frontend-0": ["drain"]}) as server:
        server.signal(signal.SIGHUP)
        server.wait_for("SIGHUP: the server stops")
        server.signal(signal.SIGHUP)
        server.signal(signal.SIGUSR1)
        server.wait_for("SIGUSR1: nothing is done")  # what came before it was heard before it
        (tmp_path / "drained").touch()
        assert server.wait() == 0
        assert "drained" in server.read_all()


@pytest.mark.parametrize("again", [False, True])
def test_the_first_signal_in_a_drain_is_no_second_one(launch: Launch, tmp_path: Path, again: bool) -> None:
    with launch("--shutdown-timeout", "60", lives={"frontend-0": ["drain"]}) as server:
        ask(choose(find_servers(), pid=server.pid), DRAIN, DrainRequest(600.0))
        server.wait_for("draining")
        server.signal(signal.SIGTERM)
        server.wait_for("SIGTERM: the server ends already; another one ends everything now")
        if again:
            server.signal(signal.SIGTERM)
        else:
            (tmp_path / "drained").touch()
        assert server.wait() == again
        assert ("drained" in server.read_all()) is not again


def test_a_signal_in_a_drain_leaves_requests_as_long_as_it_does_otherwise(launch: Launch) -> None:
    with launch("--shutdown-timeout", "0.2", lives={"frontend-0": ["deaf"]}, stop_s=0.5) as server:
        ask(choose(find_servers(), pid=server.pid), DRAIN, DrainRequest(600.0))
        server.wait_for("drain: the server stops")
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert re.search(r"frontend-0: requests have not ended after \d\.\d s and get an error", server.read_all())


def test_another_drain_follows_the_first_and_may_leave_less_time(launch: Launch) -> None:
    with launch("--shutdown-timeout", "60", lives={"frontend-0": ["deaf"]}, stop_s=0.5) as server:
        found = choose(find_servers(), pid=server.pid)
        assert ask(found, DRAIN, DrainRequest(600.0)).seconds == 600
        server.wait_for("drain: the server stops")
        assert 60 < (ask(found, DRAIN, DrainRequest()).seconds or 0) <= 600
        assert (ask(found, DRAIN, DrainRequest(0.2)).seconds or 0) <= 0.3
        server.wait_for("frontend-0: requests have not ended after .* s and get an error")
        with pytest.raises(AskError, match="the server ends already, and waits for no request"):
            ask(found, DRAIN, DrainRequest())
        assert server.wait() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_while_starting_stops_everything(launch: Launch, number: signal.Signals) -> None:
    with launch(lives={"worker": ["hang"]}, wait=False) as server:
        server.wait_for("hanging")
        server.signal(number)
        assert server.wait() == 0
        assert "ready at" not in server.read_all()


@pytest.mark.parametrize("act", ["serve", "hang"])
def test_kill_9_of_the_supervisor_leaves_nothing(launch: Launch, act: str) -> None:
    with launch(lives={"worker": [act]}, wait=False) as server:
        server.wait_for("hanging" if act == "hang" else "ready at")
        assert len(server.processes()) > len(NAMES)
        server.process.kill()
        server.wait()
        server.check_nothing_left()
