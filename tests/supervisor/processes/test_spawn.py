"""Actors are born warm, from the template, or cold, without it; and nobody notices which."""

from __future__ import annotations

import asyncio
import http.client
import os
import re
import signal
import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import msgspec
import psutil
import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.protocol.fingerprint import fingerprint
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.descriptors import memory_file
from actorserve.actors.supervisor import liveness
from actorserve.actors.supervisor.liveness import LOOK_S
from actorserve.actors.supervisor.processes import template_process
from actorserve.actors.supervisor.processes.first_template import fork_first
from actorserve.actors.supervisor.processes.questions import ANSWER_S
from actorserve.actors.supervisor.processes.template_process import Branch, Template
from actorserve.actors.supervisor.rolling.preflight import tell_layout
from actorserve.actors.supervisor.rolling.restart import FINGERPRINT_BYTES
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.shm.board.board import ActorState
from tests.frontend.others import MODEL
from tests.observer.commands import report
from tests.support.server import WAIT_S, Server
from tests.support.until import until as wait_until

NO_TEMPLATE: Any = SimpleNamespace(usable=False)
CPU_ACTORS = ("frontend-0", "renderer-0", "scheduler", "detokenizer-0")


SCRIPTED = ("--worker", "scripted", "--max-restarts", "100")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server(*SCRIPTED) as running:
        yield running


def replace(server: Server, name: str) -> None:
    server.replace(name)
    connection = http.client.HTTPConnection(server.base_url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/ready")
    assert connection.getresponse().read()
    connection.close()


def test_all_actors_are_children_of_the_supervisor_and_lead_their_own_groups(server: Server) -> None:
    """Ctrl-C on a terminal does not reach them, also where the template has forked them."""
    for pid in server.pids().values():
        assert psutil.Process(pid).ppid() == server.pid
        assert os.getpgid(pid) == pid and os.getsid(pid) == pid


def test_the_first_template_is_a_copy_of_the_supervisor_without_what_is_that_ones_own(server: Server) -> None:
    """A port that it held as well would outlive the server, and a socket of a client's would never be closed."""
    pid = server.pids()["template"]
    opened = {os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd")}
    sockets = [name for name in opened if name.startswith("socket:")]
    assert len(sockets) == 1, "it serves the supervisor alone"
    assert not [name for name in opened if "event" in name and "eventfd" not in name], opened
    assert Path(f"/proc/{pid}/cmdline").read_text().startswith("actorserve: template")
    assert psutil.Process(pid).num_threads() == 1


def test_a_child_of_a_template_tells_how_memory_is_laid_out() -> None:
    """As the supervisor would find it, which would need half of the code for that."""
    memory = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL))
    boot_fd, told = memory_file(msgspec.msgpack.encode(memory.boot(memory.system.actors[0]))), os.memfd_create("told")
    try:
        assert tell_layout(boot_fd, told) == 0
        assert os.pread(told, 2 * FINGERPRINT_BYTES, 0).decode() == fingerprint(memory.system)
    finally:
        os.close(boot_fd)
        os.close(told)
        memory.close()


def test_a_process_with_threads_is_not_copied() -> None:
    held = threading.Event()
    thread = threading.Thread(target=held.wait)
    thread.start()
    memory = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL))
    try:
        assert fork_first(memory) is None
    finally:
        held.set()
        thread.join()
        memory.close()


def test_replacements_share_the_templates_memory(server: Server) -> None:
    for name in CPU_ACTORS:
        replace(server, name)
        info = psutil.Process(server.pids()[name]).memory_full_info()
        assert info.pss < 0.75 * info.rss, name


def seen(server: Server, name: str = "template") -> dict[str, Any]:
    """A template as `actorserve ps` has it."""
    found: dict[str, Any]
    (found,) = (actor for actor in report(server)["actors"] if actor["name"] == name)
    return found


def pid_of(server: Server, name: str = "template") -> int:
    """A template's, once it forks: it may just have died in another test."""
    wait_until(lambda: seen(server, name)["state"] == "ready", pause_s=0.1)
    return int(seen(server, name)["pid"])


def has_successor(server: Server, pid: int) -> bool:
    """Is there another template than this one?"""
    return server.pids().get("template") == pid_of(server) != pid


@pytest.fixture(scope="module")
def computing() -> Iterator[Server]:
    """One whose worker has a model, and so a template of its own."""
    with Server("--kv-cache-memory-bytes", "16M", "--threads", "1", "--max-restarts", "100") as running:
        yield running


def test_a_workers_successor_has_its_imports_behind_it(computing: Server) -> None:
    for name, pid in computing.pids().items():
        assert psutil.Process(pid).ppid() == computing.pid, name
        assert os.getpgid(pid) == pid and os.getsid(pid) == pid, name
    pid_of(computing, "template-worker")
    restarts = seen(computing)["restarts"]
    replace(computing, "worker")
    own, worker = (psutil.Process(computing.pids()[name]) for name in ("template-worker", "worker"))
    assert own.num_threads() == 1, "whoever forks has no threads"
    mappings = worker.memory_maps()
    assert any("libtorch_cpu" in one.path for one in mappings)
    assert sum(one.private_dirty for one in mappings) < 60e6, "to import torch would allocate 120"
    assert seen(computing)["restarts"] == restarts
    there = seen(computing, "template-worker")
    assert (there["pid"], there["state"]) == (own.pid, "ready")


def test_the_deaths_of_templates_cost_a_worker_nothing(computing: Server) -> None:
    templates = ("template", "template-worker")
    pids = {name: pid_of(computing, name) for name in templates} | {"worker": computing.pids()["worker"]}
    restarts = seen(computing, "template-worker")["restarts"]
    for name in templates:  # the one that would fork the other is gone, too
        os.kill(pids[name], signal.SIGKILL)
    computing.wait_for(rf"template-worker ended \(pid {pids['template-worker']}, killed by SIGKILL\); it is started")
    assert computing.pids()["worker"] == pids["worker"]
    replace(computing, "worker")
    own = computing.pids()["template-worker"]
    assert own == seen(computing, "template-worker")["pid"] != pids["template-worker"]
    assert seen(computing, "template-worker")["restarts"] == restarts + 1
    first = seen(computing)["pid"]
    os.kill(first, signal.SIGKILL)
    computing.wait_for(rf"template ended \(pid {first}, killed by SIGKILL\); it is started again")
    assert computing.pids()["template-worker"] == own, "it is nobody's child but the supervisor's"


def test_a_workers_template_that_hangs_is_done_without(computing: Server) -> None:
    """Its successor is forked by the first template, which is there again."""
    os.kill(pid_of(computing, "template-worker"), signal.SIGSTOP)
    replace(computing, "worker")
    assert psutil.Process(computing.pids()["template-worker"]).status() != psutil.STATUS_STOPPED


def test_the_death_of_the_template_costs_nothing(server: Server) -> None:
    restarts = seen(server)["restarts"]
    for names in (CPU_ACTORS[:2], CPU_ACTORS[2:]):
        pid = pid_of(server)
        os.kill(pid, signal.SIGKILL)
        server.wait_for(rf"template ended \(pid {pid}, killed by SIGKILL\); it ")  # on a quick machine it pauses first
        for name in names:
            replace(server, name)
        wait_until(partial(has_successor, server, pid))
    assert seen(server)["restarts"] == restarts + 2


def test_a_template_that_hangs_is_done_without(server: Server) -> None:
    """It is stopped while the only renderer is dead: the renderer comes all the same, if later."""
    pid = pid_of(server)
    os.kill(pid, signal.SIGSTOP)
    replace(server, "renderer-0")
    server.wait_for(rf"template ended \(pid {pid}, killed, since it has not answered", since_start=True)


def test_a_template_that_hangs_is_noticed_though_nobody_asks_it(server: Server) -> None:
    replace(server, "renderer-0")  # by then it has its imports behind it
    pid = pid_of(server)
    os.kill(pid, signal.SIGSTOP)
    server.wait_for(rf"template ended \(pid {pid}, killed, since it has not answered for \d+\.\d s\)")
    with httpx.Client(base_url=server.base_url, timeout=30) as client:
        assert client.get("/ready").status_code == 200, "a request can be served without it"
        assert re.search(r'actorserve:actor_restarts_total\{actor="template"\} [1-9]', client.get("/metrics").text)


def test_after_many_deaths_of_the_template_there_is_none_for_a_while() -> None:
    with Server(*SCRIPTED) as server:  # others' would be left without one
        while "it has died too often, and is started again within 60 s" not in server.output:
            pid = seen(server)["pid"]
            os.kill(pid, signal.SIGSEGV)
            server.wait_for(rf"template ended \(pid {pid}, ")
        assert seen(server)["state"] == "dead"
        replace(server, "renderer-0")


async def test_one_that_is_stopped_in_its_imports_is_done_without() -> None:
    """These may take minutes, but not those of one that does nothing, and that an actor waits for."""
    said: list[str] = []
    output: Any = SimpleNamespace(say=lambda text, level="": said.append(text), line=lambda name, text, pid: text)
    memory = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL))
    template = Template(output, memory, memory.system.template, branch=Branch("worker", NO_TEMPLATE, []))
    nothing, forked = os.open(os.devnull, os.O_RDWR), asyncio.get_running_loop().create_future()
    template.start()
    try:
        os.kill(template.pid, signal.SIGSTOP)
        os.waitid(os.P_PID, template.pid, os.WSTOPPED | os.WNOWAIT)
        template.ask(nothing, nothing, None, forked.set_result)
        for _ in range(int(ANSWER_S / LOOK_S) + 1):  # by which its clock goes
            assert not said
            template.look()
        assert await asyncio.wait_for(forked, WAIT_S) is None
    finally:
        template.close()
        memory.close()
        os.close(nothing)
    assert "killed, since it was stopped for 3.2 s while it started" in said[0]


class Allowed:
    """How often a template may be started again, as the test says."""

    def __init__(self, *answers: bool) -> None:
        self.answers = list(answers)

    def allow(self, now: float) -> bool:
        return self.answers.pop(0)


def is_there(template: Template) -> bool:
    return template.usable


async def until(reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not reached():
            await asyncio.sleep(0.001)  # the loop hears of the death of a process


@pytest.mark.parametrize("by_others", [True, False])
async def test_it_is_started_again_once_its_deaths_are_old_enough(
    by_others: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that it had of itself, and those of others, which count for a moment: nobody can be started warm then."""
    monkeypatch.setattr(liveness, "oom_kills", lambda: 7)
    monkeypatch.setattr(template_process, "oom_kills", lambda: 7)
    said: list[str] = []
    output: Any = SimpleNamespace(say=lambda text, level="": said.append(text), line=lambda name, text, pid: text)
    memory = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL))
    template = Template(output, memory, memory.system.template)
    allowed: Any = Allowed(True, False, False, True)
    if by_others:
        template._intensity_of_kills = allowed
    else:
        template._intensity = allowed
    position = memory.system.template.position
    template.start()
    try:
        for deaths, state in ((1, "it is started again"), (2, "it has died too often")):
            os.kill(template.pid, signal.SIGKILL if by_others else signal.SIGSEGV)
            await until(lambda deaths=deaths: len(said) == deaths)  # type: ignore[misc]
            assert state in said[-1] and is_there(template) == (deaths == 1)
        assert f"again within {1 if by_others else 60} s" in said[-1]
        assert memory.board.incarnation(position) == 2
        template.look()
        assert not is_there(template)
        template.look()
        assert is_there(template) and memory.board.incarnation(position) == 3
        assert memory.board.snapshot(position).state is ActorState.STARTING
        await until(lambda: memory.board.is_ready(position))
    finally:
        template.close()
        memory.close()
    assert len(said) == 2
