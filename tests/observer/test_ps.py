"""`actorserve ps` against a real server, any of whose actors may be stopped."""

from __future__ import annotations

import argparse
import fcntl
import os
import re
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest
import requests
from msgspec import structs

from actorserve.actors.cli import main
from actorserve.actors.observer import attach as module
from actorserve.actors.observer.ask import CONNECT_S, AskError, _connect, ask
from actorserve.actors.observer.attach import AttachError, RunningServer, attach, choose, find_servers
from actorserve.actors.observer.options import Place, add_server
from actorserve.actors.protocol.sockets.control_wire import STATUS, ControlCommand, NoArguments, ServerStatus
from actorserve.actors.telemetry.snapshot import Snapshot
from tests.support.server import Server
from tests.support.until import until

from .commands import DEADLINE_S, HEADERS, KEY, port_of, report, run

KINDS = ("supervisor", "worker", "scheduler", "detokenizer-0", "renderer-0", "frontend-0")
SHOWN = (*KINDS, "template", "template-worker")
REQUEST: dict[str, str | int] = {"model": "actorserve-demo", "prompt": "Hello", "max_tokens": 4}


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """The process stands still meanwhile."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def processes(server: Server) -> dict[str, int]:
    """Its actors, without the process that gives birth to them."""
    return {name: pid for name, pid in server.pids().items() if name in KINDS}


def look(server: Server) -> Snapshot:
    """The same without a process of its own."""
    observed = attach(pid=server.pid)
    try:
        return observed.look()
    finally:
        observed.close()


def found(server: Server) -> RunningServer:
    return choose(find_servers(), pid=server.pid)


def test_one_line_an_actor(server: Server) -> None:
    done = run("ps", "--server", port_of(server))
    head, *lines = done.stdout.splitlines()
    assert done.returncode == 0 and not done.stderr
    columns = ["actor", "pid", "state", "up", "restarts", "heartbeat", "mailbox", "bytes", "oldest", "CPU %", "memory"]
    assert re.split(r"  +", head.strip()) == columns
    pids = {"supervisor": server.pid, **server.pids()}
    assert [line.split()[0] for line in lines] == list(SHOWN)
    for line in lines:
        name, pid, state = line.split()[:3]
        assert (int(pid), state) == (pids[name], "ready")
        assert re.search(r"\d+\.\d +[\d.]+ [KMG]iB$", line.strip()), line


def test_the_report_is_json(server: Server) -> None:
    told = report(server)
    assert told["server"]["pid"] == server.pid and told["server"]["url"] == server.base_url and told["server"]["ready"]
    assert {lane["source"] for lane in told["lanes"]} == set(KINDS) - {"supervisor"}
    for actor in told["actors"]:
        assert actor["state"] == "ready" and actor["cpu_percent"] >= 0 and actor["memory_bytes"] > 1 << 20
        assert actor["name"] == "supervisor" or 0 <= actor["heartbeat_s"] < 60


@pytest.mark.parametrize("name", KINDS)
def test_it_works_while_any_of_them_is_stopped(server: Server, name: str) -> None:
    pid = {"supervisor": server.pid, **processes(server)}[name]
    with stopped(pid):
        told = report(server)
        assert not told["server"]["ready"]
        assert {actor["name"]: actor["state"] for actor in told["actors"]} == {
            other: "stopped" if other == name else "ready" for other in SHOWN
        }
    assert look(server).actor(name).state == "ready"


def test_it_works_while_all_of_them_are_stopped(server: Server) -> None:
    with stopped(server.pid):
        pids = list(server.pids().values())
        for pid in pids:
            os.kill(pid, signal.SIGSTOP)
        try:
            assert {actor["state"] for actor in report(server)["actors"]} == {"stopped"}
        finally:
            for pid in pids:
                os.kill(pid, signal.SIGCONT)


def test_what_waits_for_a_stopped_actor_grows_old(server: Server) -> None:
    answers: list[int] = []

    def ask_server() -> None:
        answer = requests.post(f"{server.base_url}/v1/completions", json=REQUEST, headers=HEADERS, timeout=60)
        answers.append(answer.status_code)

    asks = threading.Thread(target=ask_server)
    with stopped(server.pids()["scheduler"]):
        asks.start()
        until(lambda: look(server).actor("scheduler").waiting_records > 0)
        told = [report(server), report(server)]
        first, second = (next(a for a in each["actors"] if a["name"] == "scheduler") for each in told)
        assert 0 < first["oldest_s"] < second["oldest_s"] and second["waiting_bytes"] > 0
        assert second["heartbeat_s"] > first["heartbeat_s"]
        waiting = [lane for lane in told[1]["lanes"] if lane["waiting_records"]]
        assert {(lane["source"], lane["target"]) for lane in waiting} == {("renderer-0", "scheduler")}
    asks.join()
    assert answers == [200]
    until(lambda: look(server).actor("scheduler").waiting_records == 0)


def test_a_death_is_a_restart(server: Server) -> None:
    before = look(server).actor("renderer-0")
    assert before.pid
    os.kill(before.pid, signal.SIGKILL)
    until(lambda: (seen := look(server).actor("renderer-0")).restarts == 1 and seen.state == "ready")
    after = look(server).actor("renderer-0")
    assert after.pid != before.pid and after.up_s < before.up_s


def test_an_observer_maps_the_segment_read_only(server: Server) -> None:
    observed = attach(pid=server.pid)
    assert fcntl.fcntl(observed.segment.fd, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY
    inode = os.fstat(observed.segment.fd).st_ino
    with open("/proc/self/maps") as file:
        permissions = [line.split()[1] for line in file if line.split()[4] == str(inode)]
    assert permissions == ["r--s"]
    observed.close()


def test_keys_are_not_told(server: Server) -> None:
    observed = attach(pid=server.pid)
    assert observed.description.config.api_key == []
    assert KEY not in repr(observed.description) and KEY not in run("ps", "--json", "--server", port_of(server)).stdout
    observed.close()


def test_the_supervisor_answers_on_its_socket(server: Server) -> None:
    status = ask(found(server), STATUS, NoArguments())
    assert status.ready and not status.ending
    assert {actor.name: actor.pid for actor in status.actors} == processes(server)
    with pytest.raises(AskError, match=r"there is no 'fly' among .*status"):
        ask(found(server), ControlCommand("fly", NoArguments, ServerStatus), NoArguments())


def test_who_asks_a_stopped_supervisor_is_told_so(server: Server) -> None:
    with stopped(server.pid), pytest.raises(AskError, match=r"does not answer 'status' within 0\.1 s"):
        ask(found(server), STATUS, NoArguments(), timeout=0.1)
    assert ask(found(server), STATUS, NoArguments()).ready


def test_a_server_that_is_not_there(server: Server) -> None:
    done = run("ps", "--server", "1")
    assert done.returncode == 1 and done.stdout == ""
    assert done.stderr.startswith("actorserve: error: no server has the port 1; there are ")
    assert port_of(server) in done.stderr


def test_no_server_at_all(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(module, "find_servers", lambda uid=None: [])
    for command in (["ps"], ["ps", "--json"], ["top", "--once"]):
        assert main(command) == 1
        assert capsys.readouterr() == ("", "actorserve: error: no server runs here\n")


def test_servers_of_other_users_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """As one of a service is, which has a user of its own."""
    theirs = RunningServer(8000, 10, os.getuid() + 1)
    monkeypatch.setattr(module, "find_servers", lambda uid=None: [theirs] if uid == 0 else [])
    for wanted, words in ((None, "no server runs here"), (8000, "no server has the port 8000")):
        with pytest.raises(AttachError, match=rf"^{words}, but those of other users, .*: port 8000 \(pid 10\)$"):
            choose([], wanted)


def test_two_servers(server: Server, another: Callable[[], Server]) -> None:
    with another() as other:
        done = run("ps")
        assert done.returncode == 1
        assert done.stderr.startswith(
            "actorserve: error: several servers run here, choose one with --server PORT or pid:PID: "
        )
        for each in (server, other):
            assert f"port {port_of(each)} (pid {each.pid})" in done.stderr
            assert report(each)["server"]["pid"] == each.pid
            assert attach(pid=each.pid).description.port == int(port_of(each))
        with stopped(server.pid):
            assert report(server)["server"]["pid"] == server.pid
        name = found(other)
    assert name not in find_servers(), "nothing of it is left"
    with pytest.raises(AttachError, match="no server has"):
        attach(pid=other.pid)


@pytest.mark.parametrize(
    ("servers", "words", "chosen"),
    [
        ([(1, 10)], [], (1, 10)),
        ([(1, 10), (2, 20)], ["--server", "2"], (2, 20)),
        ([(1, 10), (2, 20)], ["--port", "2"], (2, 20)),
        ([(1, 10), (2, 20)], ["--server", "pid:10"], (1, 10)),
        ([(1, 10), (2, 20)], ["--server", "10"], "no server has the port 10; there are port 1"),
        ([(1, 10), (2, 20)], ["--server", "pid:2"], "no server has the process id 2; there are"),
        ([(20, 10), (2, 20)], ["--port", "20"], (20, 10)),
        ([(1, 10), (2, 20)], [], "several servers"),
        ([(1, 10), (1, 20)], ["--server", "1"], "several servers"),
        ([(1, 10), (1, 20)], ["--server", "pid:20"], (1, 20)),
        ([], [], "no server runs here"),
        ([], ["--server", "pid:7"], "process id 7$"),
        ([(1, 10)], ["--server", "7"], r"port 7; there are port 1 \(pid 10\)"),
    ],
)
def test_which_server(
    servers: list[tuple[int, int]],
    words: list[str],
    chosen: tuple[int, int] | str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "find_servers", lambda uid=None: [])  # of other users
    there = [RunningServer(port, pid, 0) for port, pid in servers]
    parser = argparse.ArgumentParser()
    add_server(parser)
    place: Place = parser.parse_args(words).server
    if isinstance(chosen, str):
        with pytest.raises(AttachError, match=chosen):
            choose(there, *place)
    else:
        assert choose(there, *place) == RunningServer(*chosen, 0)


@pytest.mark.parametrize("word", ["pid:", "pid:x", "x", "-1", "8000.0", "²"])
def test_what_is_no_server(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ps", f"--server={word}"])
    assert f"{word!r} is no port, and no process id as pid:1234" in capsys.readouterr().err


def test_a_name_that_another_user_has_taken_is_no_server(
    server: Server, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real = next(line for line in module.SOCKETS.read_text().splitlines() if line.endswith(f"@{found(server).name}"))
    inode = int(real.split()[module.INODE])

    def listed(uid: int, pid: int, flags: str = "00010000", inode: int = inode) -> list[RunningServer]:
        line = f"0000: 00000002 00000000 {flags} 0001 01 {inode} @actorserve-{uid}-1-{pid}-0123456789abcdef"
        (tmp_path / "unix").write_text(f"Num RefCount Protocol Flags Type St Inode Path\n0000: 2 0 0 1 1 7\n{line}\n")
        monkeypatch.setattr(module, "SOCKETS", tmp_path / "unix")
        return find_servers()

    uid = os.getuid()
    assert listed(uid, server.pid) == [
        RunningServer(1, server.pid, uid, f"actorserve-{uid}-1-{server.pid}-0123456789abcdef")
    ]
    assert listed(uid, server.pid, inode=1 << 40) == [], "another process has that socket"
    assert listed(uid + 1, server.pid) == [], "it names a process of another user"
    assert listed(uid, 1 << 30) == [], "it names none"
    assert listed(uid, server.pid, "00000000") == [], "nobody listens"
    with socket.socket(socket.AF_UNIX) as own:
        (other,) = listed(uid, os.getpid(), inode=os.fstat(own.fileno()).st_ino)
        with pytest.raises(AttachError, match="does not say where"):
            attach(pid=other.pid)


@contextmanager
def as_another_user(act: Callable[[socket.socket], None]) -> Iterator[None]:
    """Another process and user does something on a Unix socket, and keeps it open meanwhile."""
    done, says = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX) as own:
                act(own)
                os.write(says, b"done")
                signal.pause()
        finally:
            os._exit(1)
    os.close(says)
    try:
        assert os.read(done, 4) == b"done"
        yield
    finally:
        os.close(done)
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


@pytest.mark.skipif(os.getuid() != 0, reason="only root can become somebody else")
def test_another_user_can_neither_fake_a_server_nor_take_its_places(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A name that looks like its own is not listed, and who listens there is not told anything."""
    mine = found(server)
    false = f"actorserve-{mine.uid}-1-{mine.pid}-0123456789abcdef"

    def listen(own: socket.socket) -> None:
        own.bind(f"\0{false}")
        own.listen()

    def unseen(path: str) -> list[str]:
        raise PermissionError

    with as_another_user(listen):
        for look in (os.listdir, unseen):  # a server with more rights than its user: who is connected there is asked
            with monkeypatch.context() as patched:
                patched.setattr(os, "listdir", look)
                listed = find_servers()
            assert listed.count(mine) == 1
            assert all(each.name != false and each.port != 1 for each in listed)
        with pytest.raises(AskError, match=f"not the supervisor on {re.escape(str(mine))} .* of user 65534"):
            ask(structs.replace(mine, name=false), STATUS, NoArguments())
    others: list[socket.socket] = []

    def crowd(own: socket.socket) -> None:
        for _ in range(100):
            others.append(socket.socket(socket.AF_UNIX))
            others[-1].connect(f"\0{mine.name}")

    with as_another_user(crowd):
        for _ in range(3):
            assert ask(mine, STATUS, NoArguments()).ready


def test_who_asks_waits_for_room_in_a_crowd() -> None:
    """Until the one before it is accepted."""
    name = f"actorserve-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as first:
        listener.bind(f"\0{name}")
        listener.listen(0)
        first.connect(f"\0{name}")
        accepted: list[socket.socket] = []
        waits = threading.Timer(0.05, lambda: accepted.append(listener.accept()[0]))
        waits.start()
        with socket.socket(socket.AF_UNIX) as second:
            _connect(second, name)
            assert second.gettimeout() == CONNECT_S
        waits.join()
        accepted[0].close()


def test_an_answer_that_drips_is_not_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then does not put the deadline off."""
    name = f"actorserve-test-{secrets.token_hex(8)}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"\0{name}")
        listener.listen()

        def drip() -> None:
            connection, _ = listener.accept()
            with connection, suppress(OSError):  # until the other end is gone
                while True:
                    connection.send(b" ")
                    time.sleep(0.01)

        thread = threading.Thread(target=drip)
        thread.start()
        with pytest.raises(AskError, match=r"does not answer 'status' within 0\.2 s"):
            ask(RunningServer(1, os.getpid(), os.getuid(), name), STATUS, NoArguments(), timeout=0.2)
        thread.join(DEADLINE_S)
        assert not thread.is_alive()


def test_servers_of_others_are_for_root(server: Server) -> None:
    mine = found(server)
    assert mine in find_servers(mine.uid) and mine in find_servers(0)
    assert not mine.uid or mine not in find_servers(mine.uid + 1)
