"""What a service manager is told, and the sockets that it passes: a real supervisor with fake actors."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.supervisor.listeners import ListenError
from actorserve.actors.supervisor.systemd.activation import take_one, take_sockets
from actorserve.actors.supervisor.systemd.notify import Manager, find_manager
from actorserve.actors.supervisor.systemd.service import Service
from actorserve.actors.supervisor.timeouts import is_in_order, stop_seconds
from tests.support.manager import FakeServiceManager, PassedSocket
from tests.support.models.checkpoints import write_shape
from tests.support.server import Server
from tests.support.until import until

COMMAND = (sys.executable, str(Path(__file__).with_name("fake_launch.py")))
Launch = Callable[..., Server]
FIRST_OF_A_CONTAINER = """
import os, signal, sys
from actorserve.actors.supervisor import launch
own = os.getpid()
os.getpid = lambda: 1
launch._become_supervisor()
os.kill(own, int(sys.argv[1]))
"""
SIGHUP_AT_THE_START = """
import os, signal, sys
from actorserve.actors.options.config import Config, ConfigError
from actorserve.actors.supervisor import launch
def opened(*_):
    os.kill(os.getpid(), signal.SIGHUP)
    raise ConfigError("it is behind the signal")
launch._open = opened
sys.exit(launch.launch(Config(key_file=sys.argv[1] or None)))
"""
NO_NAMES_YET = """
import socket, sys
from actorserve.actors.cli import main
def getaddrinfo(*_, **__):
    raise socket.gaierror(socket.EAI_AGAIN, "not now")
socket.getaddrinfo = getaddrinfo
sys.exit(main(["launch", "--host", "a.name"]))
"""


@pytest.fixture
def launch(tmp_path: Path) -> Launch:
    """Start a server whose actors live as `lives` says."""
    model = write_shape(tmp_path)

    def start(
        *arguments: str,
        env: dict[str, str],
        lives: dict[str, list[str]] | None = None,
        before: tuple[str, ...] = (),
        wait: bool = True,
    ) -> Server:
        small = ("--max-num-seqs", "2", "--max-num-queued-reqs", "2")
        env |= {"FAKE_ACTORS": json.dumps(lives or {}), "FAKE_DRAINED": str(tmp_path / "drained")}
        command = (*before, *COMMAND) if before else None
        return Server(*model, *small, *arguments, command=command, program=COMMAND[1], env=env, wait=wait)

    return start


# --- the order of things -----------------------------------------------------------------------------------------


def test_ready_waits_for_the_first_token(launch: Launch, tmp_path: Path) -> None:
    with FakeServiceManager() as manager, launch(env=manager.env, lives={"frontend-0": ["cold"]}, wait=False) as server:
        manager.wait_for("STATUS", "starting: waits for the first token")
        assert manager.messages[-1]["EXTEND_TIMEOUT_USEC"] == "30000000"
        assert not manager.heard("READY")
        first = manager.messages[0]  # what may be downloaded is no matter of MODEL alone
        assert first["STATUS"] == "loading" and int(first["EXTEND_TIMEOUT_USEC"]) >= 3600e6
        (tmp_path / "drained").touch()
        server.wait_ready()
        manager.wait_for("READY", "1")
        assert manager.messages[-1]["MAINPID"] == str(server.pid)
        assert manager.wait_for("STATUS", "ready: 0 running, 0 waiting, 0 tokens/s, 0 restarts")
        assert server.stop() == 0
        manager.wait_for("STOPPING", "1")
        assert "stopping" in manager.messages[-1]["STATUS"]
        assert manager.heard("READY") == manager.heard("STOPPING") == ["1"]


def test_requests_that_may_take_for_ever_are_waited_for(launch: Launch, tmp_path: Path) -> None:
    lives = {"frontend-0": ["drain"]}
    with FakeServiceManager() as manager, launch("--shutdown-timeout", "inf", env=manager.env, lives=lives) as server:
        server.signal(signal.SIGTERM)
        server.wait_for("draining")
        (tmp_path / "drained").touch()
        assert server.wait() == 0
        assert "drained" in server.read_all()
        manager.wait_for("STOPPING", "1")
        assert 10**18 < int(manager.messages[-1]["EXTEND_TIMEOUT_USEC"]) < 1 << 63


def test_a_server_that_cannot_start_is_never_ready(launch: Launch) -> None:
    with FakeServiceManager() as manager, launch(env=manager.env, lives={"worker": ["exit_3"]}, wait=False) as server:
        assert server.wait() == 3
        manager.wait_for("STOPPING", "1")
        assert not manager.heard("READY")


def test_restarts_are_told(launch: Launch) -> None:
    with FakeServiceManager() as manager, launch(env=manager.env) as server:
        server.replace("renderer-0")
        manager.wait_for("STATUS", "ready: 0 running, 0 waiting, 0 tokens/s, 1 restarts")
        server.replace("worker")
        manager.wait_for("STATUS", "2 restarts")


def test_no_actor_can_speak_for_the_service(launch: Launch) -> None:
    with FakeServiceManager(watchdog_s=60) as manager:
        lives = {name: ["show_environment"] for name in ("worker", "renderer-0")}
        with launch(env=manager.env, lives=lives) as server:
            for _ in lives:
                assert server.wait_for(r"environment: (.*)", since_start=True)[1] == "none"


def test_a_manager_that_cannot_be_told(launch: Launch, tmp_path: Path) -> None:
    with launch(env={"NOTIFY_SOCKET": str(tmp_path / "none"), "WATCHDOG_USEC": "500000"}) as server:
        assert server.stop() == 0
        assert server.read_all().count("the service manager cannot be told how the server is: No such file") == 1


# --- the watchdog ------------------------------------------------------------------------------------------------


def test_beats_go_on_while_a_hung_actor_is_replaced(launch: Launch) -> None:
    with FakeServiceManager(watchdog_s=1.0) as manager, launch("--hang-timeout", "2", env=manager.env) as server:
        os.kill(server.pids()["renderer-0"], signal.SIGSTOP)
        server.wait_for("renderer-0 ended .* killed, since its loop stood still")
        server.wait_for("renderer-0 is up")
        until(lambda: re.search(r"[1-9]\d* restarts", manager.wait_for("STATUS")), pause_s=0)
        for _ in range(3):
            manager.wait_for("WATCHDOG", "1")


def test_no_beats_while_the_supervisor_stands_still(launch: Launch) -> None:
    with FakeServiceManager(watchdog_s=0.5) as manager, launch(env=manager.env) as server:
        manager.wait_for("WATCHDOG")
        server.signal(signal.SIGSTOP)
        with pytest.raises(TimeoutError):  # after those that were under way
            list(iter(lambda: manager.hear(timeout=1.5), None))
        server.signal(signal.SIGCONT)
        manager.wait_for("WATCHDOG")


class FakeLiveness:
    """A liveness as the test says."""

    def __init__(self, *, was_up: bool = True, still_s: float = 0.0, age_s: float = 1.0) -> None:
        self.was_up, self.still_s, self.age_s, self.stopped_s = was_up, still_s, age_s, 0.0


def fake_child(
    kind: str = "renderer",
    liveness: FakeLiveness | None = None,
    *,
    hung: str = "",
    waits: bool = False,
    age: float = 1.0,
    is_gone: bool = False,
) -> Any:
    gone = asyncio.Event()
    if is_gone:
        gone.set()
    about = {"hung": hung, "waits": waits, "age": age, "gone": gone}
    return SimpleNamespace(name=kind, traits=KINDS[kind], liveness=liveness, up=True, restarts=0, **about)


@pytest.mark.parametrize(
    ("child", "good"),
    [
        (fake_child(liveness=FakeLiveness()), True),
        (fake_child(liveness=FakeLiveness(still_s=9.9)), True),
        (fake_child(liveness=FakeLiveness(still_s=10.5)), False),
        (fake_child("worker", FakeLiveness(still_s=10.5)), True),
        (fake_child("worker", FakeLiveness(still_s=121)), False),
        (fake_child(liveness=FakeLiveness(was_up=False, age_s=59, still_s=59)), True),
        (fake_child(liveness=FakeLiveness(was_up=False, age_s=61)), False),
        (fake_child(liveness=FakeLiveness(), hung="it was killed, and is still there"), False),
        (fake_child(liveness=None), True),
        (fake_child(liveness=None, age=61), False),
        (fake_child(liveness=None, age=61, waits=True), True),
        (fake_child("worker", None, age=1e6, is_gone=True), True),  # parked since the machine was started
        (fake_child("porter", None, age=1e6, is_gone=True), True),  # left down for a while
        (fake_child(liveness=None, hung="it was killed, and is still there", is_gone=True), False),
    ],
)
def test_what_is_in_order(child: Any, good: bool) -> None:
    assert is_in_order(child, Config()) is good


async def test_the_watchdog_is_fed_only_while_all_are_in_order() -> None:
    child = fake_child(liveness=FakeLiveness(), hung="it cannot be killed")
    supervisor: Any = SimpleNamespace(
        children=[fake_child(liveness=FakeLiveness()), child],
        system=SimpleNamespace(config=Config(), of_kind=lambda kind: [SimpleNamespace(position=0)]),
        memory=SimpleNamespace(board=SimpleNamespace(gauge=lambda position, number: 0)),
        ready=True,
        ending=asyncio.Event(),
    )
    with FakeServiceManager() as manager:
        service = Service(supervisor, Manager(manager.env["NOTIFY_SOCKET"], watchdog_s=0.5))
        service.ready()
        assert manager.hear()["READY"] == "1"
        service.look()
        with pytest.raises(TimeoutError):
            manager.hear(timeout=0.01)  # a datagram that was sent is there at once
        child.hung = ""
        service.look()
        assert manager.hear() == {"WATCHDOG": "1"}


def test_the_variables_of_a_manager() -> None:
    environ = {"NOTIFY_SOCKET": "@a", "WATCHDOG_USEC": "3000000", "WATCHDOG_PID": str(os.getpid()), "PATH": "/"}
    manager = find_manager(environ)
    assert manager.listens and manager.watchdog_s == 3.0 and environ == {"PATH": "/"}
    assert find_manager({"NOTIFY_SOCKET": "@a", "WATCHDOG_USEC": "1", "WATCHDOG_PID": "1"}).watchdog_s == 0
    assert find_manager({"NOTIFY_SOCKET": "@a", "WATCHDOG_USEC": "soon"}).watchdog_s == 0
    nobody = find_manager({"WATCHDOG_USEC": "1"})
    assert not nobody.listens and nobody.watchdog_s == 0
    nobody.tell(READY=1)


def test_a_line_break_begins_no_other_field(tmp_path: Path) -> None:
    with FakeServiceManager(str(tmp_path / "notify")) as manager:
        Manager(manager.env["NOTIFY_SOCKET"]).tell(STATUS="one\nREADY=1")
        assert manager.hear() == {"STATUS": "one READY=1"}


def test_the_time_to_stop_follows_from_the_options() -> None:
    assert stop_seconds(100) == stop_seconds(0) + 100


# --- sockets that are passed -------------------------------------------------------------------------------------


@pytest.fixture
def held() -> Any:
    held = PassedSocket(socket.create_server(("127.0.0.1", 0)))
    yield held
    held.close()


def test_the_passed_socket_is_served_and_outlives_the_server(launch: Launch, held: PassedSocket) -> None:
    port = held.listener.getsockname()[1]
    for _ in range(2):
        with launch(env=dict(held.env), before=held.command) as server:
            assert server.base_url == f"http://127.0.0.1:{port}"
            assert f"listening on 127.0.0.1:{port} (a socket of the service manager)" in server.output
            assert server.stop() == 0
        with socket.create_connection(("127.0.0.1", port)):  # the kernel takes it although nobody serves
            pass


def test_what_is_not_for_this_process_is_left_alone() -> None:
    environ = {"LISTEN_FDS": "1", "LISTEN_PID": "1"}
    assert take_sockets(environ) == [] and environ == {}
    assert take_sockets({"LISTEN_FDS": "many", "LISTEN_PID": str(os.getpid())}) == []
    assert take_sockets({}) == []


@pytest.mark.parametrize("kind", ["file", "unix", "datagram", "not listening"])
def test_what_is_no_listening_socket_is_refused(kind: str, tmp_path: Path) -> None:
    makers: dict[str, Callable[[], Any]] = {
        "file": lambda: open(tmp_path / "file", "w"),  # noqa: SIM115  # closed below
        "unix": lambda: socket.socket(socket.AF_UNIX),
        "datagram": lambda: socket.socket(socket.AF_INET, socket.SOCK_DGRAM),
        "not listening": lambda: socket.socket(socket.AF_INET),
    }
    made = makers[kind]()
    with made, pytest.raises(ListenError, match=r"descriptor [0-9]+ of LISTEN_FDS is no"):
        take_one(os.dup(made.fileno()))


# --- before there is a server ------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_first_process_of_a_container(number: signal.Signals) -> None:
    """Also while a model is downloaded: what has no handler there is not delivered."""
    ended = subprocess.run([sys.executable, "-c", FIRST_OF_A_CONTAINER, str(int(number))], timeout=60)
    assert ended.returncode == 128 + number


@pytest.mark.parametrize(("file", "status"), [("keys", 2), ("", -signal.SIGHUP)])
def test_who_has_the_keys_read_again_while_the_server_starts_ends_nothing(file: str, status: int) -> None:
    ended = subprocess.run(
        [sys.executable, "-c", SIGHUP_AT_THE_START, file], capture_output=True, text=True, timeout=60
    )
    assert ended.returncode == status and ("it is behind the signal" in ended.stderr) is bool(file)


def test_a_name_that_is_not_known_yet_is_tried_again() -> None:
    """A service manager starts nothing again after a status of 2."""
    ended = subprocess.run([sys.executable, "-c", NO_NAMES_YET], capture_output=True, text=True, timeout=60)
    assert ended.returncode == 1 and "--host: a.name is no address" in ended.stderr
