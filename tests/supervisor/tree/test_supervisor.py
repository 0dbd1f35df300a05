"""The supervisor with fake actors: real processes, real segment, real signals."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from actorserve.actors.observer.ask import ask
from actorserve.actors.observer.attach import attach, choose, find_servers
from actorserve.actors.protocol.sockets.control_wire import (
    SCALE,
    SCALE_PROGRESS,
    STATUS,
    NoArguments,
    ProgressRequest,
    ScaleRequest,
)
from actorserve.actors.supervisor.recovery import REST_S
from tests.support.models.vision.folders import vision_folder

from .launches import NAMES, Launch


def test_all_actors_come_up_and_are_named(launch: Launch) -> None:
    with launch("--frontends", "2") as server:
        assert set(server.pids()) == NAMES | {"frontend-1"}
        for name, pid in server.pids().items():
            assert re.search(rf"{name} is up \(pid {pid}, ", server.output)
        assert psutil.Process(server.pid).cmdline()[0].strip() == "actorserve: supervisor"
        assert server.stop() == 0


def test_the_port_is_bound_and_said(launch: Launch) -> None:
    with launch() as server:
        port = int(server.base_url.rpartition(":")[2])
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert client.getpeername() == ("127.0.0.1", port)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_actors_stop_in_reverse_order(launch: Launch, number: signal.Signals) -> None:
    with launch() as server:
        server.signal(number)
        assert server.wait() == 0
        said = re.findall(r"supervisor +\| (\S+) ended \(.*exit status 0", server.read_all())
        assert said == ["frontend-0", "renderer-0", "detokenizer-0", "scheduler", "worker"]


UNUSED = ("SIGUSR1", "SIGUSR2", "SIGALRM", "SIGVTALRM", "SIGPROF", "SIGIO", "SIGPWR", "SIGPIPE", "SIGSTKFLT")


def test_signals_that_mean_nothing_end_nobody(launch: Launch) -> None:
    """Somebody's `pkill -USR1 actorserve` is said, and that is all."""
    with launch() as server:
        before = server.pids()
        for name in UNUSED:
            number = signal.Signals[name]
            for pid in (*before.values(), server.pid):
                os.kill(pid, number)
            if number is not signal.SIGPIPE:
                server.wait_for(f"{name}: nothing is done at it; SIGTERM stops the server")
        for pid in before.values():
            os.kill(pid, signal.SIGHUP)
        assert server.stop() == 0
        assert set(re.findall(r"ended \(pid (\d+)", server.read_all())) == {str(pid) for pid in before.values()}
        assert "killed by" not in server.output and "started again" not in server.output


def test_under_nohup_the_end_of_the_terminal_is_not_heard(launch: Launch) -> None:
    with launch(before=("nohup",)) as server:
        server.signal(signal.SIGHUP)
        server.signal(signal.SIGUSR1)
        server.wait_for("SIGUSR1")
        assert server.stop() == 0
        assert "SIGHUP" not in server.read_all()


def test_actors_may_have_as_many_connections_as_the_machine_allows(launch: Launch) -> None:
    hard = psutil.Process().rlimit(psutil.RLIMIT_NOFILE)[1]
    with launch() as server:
        soft, _ = psutil.Process(server.pids()["frontend-0"]).rlimit(psutil.RLIMIT_NOFILE)
        assert soft >= min(hard, 1 << 16)


def test_ctrl_c_on_a_terminal_reaches_the_supervisor_alone(launch: Launch) -> None:
    with launch() as server:
        groups = {os.getpgid(pid) for pid in server.pids().values()}
        assert len(groups) == len(NAMES) and os.getpgid(server.pid) not in groups


@pytest.mark.parametrize("name", sorted(NAMES))
def test_a_killed_actor_is_replaced(launch: Launch, name: str) -> None:
    with launch() as server:
        before = server.pids()
        os.kill(before[name], signal.SIGKILL)
        server.wait_for(rf"{name} ended \(pid {before[name]}, killed by SIGKILL, up .* 0 restarts before\)")
        server.wait_for(rf"{name} is up")
        after = server.pids()
        assert {n for n in NAMES if before[n] != after[n]} == {name}
        assert server.stop() == 0


def test_all_actors_die_at_once(launch: Launch) -> None:
    with launch() as server:
        before = server.pids()
        for pid in before.values():
            os.kill(pid, signal.SIGKILL)
        for _ in NAMES:
            server.wait_for("is up")
        after = server.pids()
        assert set(after) == NAMES and not set(after.values()) & set(before.values())
        assert server.stop() == 0


def test_an_actor_that_dies_too_often_ends_the_server(launch: Launch) -> None:
    with launch(lives={"worker": ["die_ready"]}, wait=False) as server:
        for restarts in range(5):
            server.wait_for(rf"worker ended .* {restarts} restarts before\); it is started again")
        server.wait_for(r"worker ended .* 5 restarts before\); it has died too often")
        assert server.wait() == 1


@pytest.mark.parametrize("rest_s", [0.01, REST_S])
def test_the_server_goes_on_without_one_that_it_does_not_need(launch: Launch, rest_s: float) -> None:
    """That rests, and is tried again; an end of the server waits for neither."""
    options, lives = (
        ("--kv-offload", "host:1Mi", "--max-restarts", "1"),
        {"porter": ["die_ready", "die_ready", "serve"]},
    )
    with launch(*options, lives=lives, rest_s=rest_s) as server:
        server.wait_for(
            r"porter ended .* 1 restarts before\); it has died too often, and is left down", since_start=True
        )
        if rest_s < REST_S:
            server.wait_for("porter is up")
            assert "porter" in server.pids()
        status, attached = ask(choose(find_servers(), pid=server.pid), STATUS, NoArguments()), attach(pid=server.pid)
        down = ["porter"] * (rest_s == REST_S)
        assert status.ready and [child.name for child in status.actors if not child.up] == down
        assert [actor.name for actor in attached.look().actors if actor.state == "dead"] == down
        attached.close()
        assert server.stop() == 0


def test_it_goes_on_without_those_that_read_pictures(launch: Launch, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Texts are answered all the same."""
    folder = vision_folder("qwen2_5_vl", tmp_path_factory.mktemp("vision"))
    lives = {"media-0": ["die_ready", "die_ready", "serve"]}
    with launch("--max-restarts", "1", folder=folder, lives=lives, rest_s=0.01) as server:
        server.wait_for(
            r"media-0 ended .* 1 restarts before\); it has died too often, and is left down", since_start=True
        )
        server.wait_for("media-0 is up")
        assert server.stop() == 0


def test_a_few_deadly_requests_do_not_end_the_server(launch: Launch) -> None:
    """Each costs three lives, of which one counts: 28 processes, which take seconds."""
    with launch(lives={"renderer-0": ["deadly"] * 12 + ["serve"]}) as server:
        server.wait_for(r"renderer-0 ended .* 11 restarts before\); it is started again", since_start=True)
        server.wait_for("renderer-0 is up")
        assert server.stop() == 0
    with launch(lives={"renderer-0": ["deadly"]}, wait=False) as server:
        server.wait_for(r"renderer-0 ended .* 15 restarts before\); it has died too often")
        assert server.wait() == 1


def test_deaths_before_a_deadly_request_is_tried_again_count(launch: Launch) -> None:
    """Two lives have tried it; those that fail as they start do so for another reason, and not for ever."""
    lives = {"renderer-0": ["serve", "deadly", "deadly", "kill"]}
    with launch("--max-restarts", "3", lives=lives) as server:
        os.kill(server.pids()["renderer-0"], signal.SIGKILL)
        server.wait_for(r"renderer-0 ended .* 5 restarts before\); it has died too often", since_start=True)
        assert server.wait() == 1


def test_one_slow_crash_after_the_other_never_escalates() -> None:
    from actorserve.actors.supervisor.restart_policy import Intensity

    intensity = Intensity(most=2, within=10.0)
    assert all(intensity.allow(5.0 * step) for step in range(100))
    assert not intensity.allow(5.0 * 99 + 1)


@pytest.mark.parametrize(
    ("act", "status", "reason"),
    [
        ("exit_3", 3, "exit status 3"),
        ("fail", 1, "RuntimeError: no such luck"),
        ("refuse", 2, "--dtype: not with this model"),
        ("kill", 1, "killed by SIGKILL"),
    ],
)
def test_an_actor_that_cannot_start_ends_the_server_at_once(launch: Launch, act: str, status: int, reason: str) -> None:
    with launch(lives={"worker": [act]}, wait=False) as server:
        assert server.wait() == status
        lines = server.read_all().splitlines()
        assert re.search(rf"supervisor +\| the server cannot start: worker ended .*{reason}", lines[-1])
        assert not [line for line in lines if "started again" in line or re.search(r"(scheduler|0) ended", line)]


def test_an_actor_may_fail_to_start_once_the_server_was_ready(launch: Launch) -> None:
    with launch(lives={"renderer-0": ["serve", "fail", "serve"]}) as server:
        os.kill(server.pids()["renderer-0"], signal.SIGKILL)
        server.wait_for("no such luck")
        server.wait_for("renderer-0 is up")
        assert server.stop() == 0


def test_an_interpreter_that_is_missing_for_now_is_waited_for(launch: Launch, tmp_path: Path) -> None:
    """As while an upgrade replaces it; a server that starts says so and ends."""
    with launch() as server:
        (tmp_path / "missing").touch()
        os.kill(server.pids()["renderer-0"], signal.SIGKILL)
        server.wait_for("renderer-0 cannot be started yet: .*No such file.*; it is tried again")
        (tmp_path / "missing").unlink()
        server.wait_for("renderer-0 is up")
        assert server.output.count("cannot be started yet") == 1
        assert server.stop() == 0
    (tmp_path / "missing").touch()
    with launch(wait=False) as server:
        assert server.wait() == 1
        assert "cannot be started: [Errno 2]" in server.read_all()


def test_an_interpreter_that_stays_away_ends_the_server(
    launch: Launch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever started it learns of that, and may start it anew."""
    monkeypatch.setenv("FAKE_LONGEST_S", "0.3")
    with launch() as server:
        (tmp_path / "missing").touch()
        os.kill(server.pids()["renderer-0"], signal.SIGKILL)
        server.wait_for("renderer-0 cannot be started yet: .*it is tried again")
        assert server.wait() == 1
        assert "renderer-0 cannot be started: [Errno 2]" in server.read_all()


def test_helpers_of_a_dead_actor_die_too(launch: Launch) -> None:
    with launch(lives={"renderer-0": ["helper", "serve"]}) as server:
        helper = psutil.Process(int(server.wait_for(r"helper (\d+)", since_start=True)[1]))
        server.replace("renderer-0")
        helper.wait(10)
        assert not helper.is_running()


def test_every_line_of_a_chatterer_arrives_with_its_name(launch: Launch) -> None:
    with launch(lives={"detokenizer-0": ["chatter"]}) as server:
        server.wait_for("all said", since_start=True)  # it may have come before the server was ready
        lines = re.findall(r"^[-0-9 :.]{23} detokenizer-0 \| line (\d+)$", server.output, re.MULTILINE)
        assert [int(n) for n in lines] == list(range(20_000))
        assert (
            sum(map(len, re.findall(r"^[-0-9 :.]{23} detokenizer-0 \| (x+)$", server.output, re.MULTILINE))) == 40_000
        )


def test_a_mistake_of_the_supervisor_itself_ends_the_server(launch: Launch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_MISTAKE", "1")
    with launch() as server:
        os.kill(server.pids()["renderer-0"], signal.SIGKILL)
        server.wait_for("RuntimeError: a mistake")
        assert server.wait() == 1


def test_port_in_use(launch: Launch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with launch("--port", str(port), wait=False) as server:
            assert server.wait() == 1
            assert f"cannot listen on 127.0.0.1:{port}: Address already in use" in server.read_all()
            assert "is up" not in server.output


def test_no_room_in_shared_memory(launch: Launch) -> None:
    with launch("--max-num-queued-reqs", "1000000000", wait=False) as server:
        assert server.wait() == 1
        assert "a smaller --max-num-queued-reqs" in server.read_all()


def test_ipv6(launch: Launch) -> None:
    try:  # Python may know it where the machine, as many containers, has no such address
        socket.create_server(("::1", 0), family=socket.AF_INET6).close()
    except OSError as error:
        pytest.skip(f"no IPv6 here: {error}")
    with launch("--host", "::1") as server:
        assert re.fullmatch(r"http://\[::1\]:\d+", server.base_url)


def test_the_supervisor_imports_nothing_heavy() -> None:
    code = "import actorserve.actors.supervisor.launch, sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy = {"torch", "transformers", "numpy", "aiohttp", "triton", "tokenizers", "importlib.metadata"}
    assert not heavy & set(done.stdout.split())


@pytest.mark.parametrize("lives", [["fail"], ["kill", "kill", "exit_3"], ["die_ready"]])
def test_an_engine_that_does_not_come_up_stays_parked_and_the_server_goes_on(launch: Launch, lives: list[str]) -> None:
    """One that has been ready is like any other: it may die, but not too often."""
    options = ("--max-data-parallel-size", "2", "--max-restarts", "4")
    with launch(*options, lives={"worker@1": [*lives, "serve"]}) as server:
        assert "worker@1" not in server.pids()
        found = choose(find_servers(), pid=server.pid)
        number = ask(found, SCALE, ScaleRequest(2)).number
        news = ask(found, SCALE_PROGRESS, ProgressRequest(number))
        while not news.done:
            news = ask(found, SCALE_PROGRESS, ProgressRequest(number))
        if lives == ["die_ready"]:
            assert not news.failed
        else:
            assert news.failed.startswith("engine 1 did not come up: worker@1 ended (pid")
            server.wait_for("engine 1 stays parked")
            assert "worker@1" not in server.pids()
            number = ask(found, SCALE, ScaleRequest(2)).number
        server.wait_for(r"worker@1 is up")
        status = ask(found, STATUS, NoArguments())
        assert status.ready and not any(child.parked for child in status.actors)
        assert server.stop() == 0
