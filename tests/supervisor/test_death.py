"""What a successor is told of the life before it."""

from __future__ import annotations

import asyncio
import os
import sys

import pytest

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.in_flight import NO_REQUEST, Ended
from actorserve.actors.supervisor import liveness
from actorserve.actors.supervisor.output import Output
from actorserve.actors.supervisor.processes import child as child_module
from actorserve.actors.supervisor.processes.child import Child
from actorserve.actors.supervisor.restart_policy import Death
from actorserve.actors.supervisor.shared_memory import Memory


@pytest.mark.parametrize(
    ("returncode", "hung", "was_busy", "wanted", "how"),
    [
        (0, "", False, True, Ended.REPLACED),
        (-15, "", False, True, Ended.REPLACED),
        (-9, "", False, True, Ended.REPLACED),
        (0, "", False, False, Ended.DIED),
        (-9, "", False, False, Ended.DIED),
        (1, "", False, True, Ended.DIED),  # it was told to end, and failed
        (-11, "", False, True, Ended.DIED),
        (-9, "its loop stands still", True, True, Ended.HUNG),
        (-9, "its loop stands still", False, True, Ended.DIED),
        (-9, "its loop stands still", True, False, Ended.HUNG),
    ],
)
def test_how_it_ended(returncode: int, hung: str, was_busy: bool, wanted: bool, how: Ended) -> None:
    death = Death(actor="worker", pid=1, returncode=returncode, uptime=1.0, restarts=0, hung=hung, was_busy=was_busy)
    assert death.how(wanted) is how


@pytest.mark.parametrize(("wanted", "how"), [(False, Ended.OUTSIDE), (True, Ended.REPLACED)])
def test_who_was_killed_or_stopped_by_somebody_did_not_die_of_its_work(wanted: bool, how: Ended) -> None:
    death = Death(actor="worker", pid=1, returncode=-9, uptime=1.0, restarts=0, from_outside=True)
    assert death.how(wanted) is how and how in NO_REQUEST


@pytest.mark.parametrize(
    ("act", "kills", "how"),
    [
        ("kill", (7, 7), Ended.OUTSIDE),
        ("kill", (7, 8), Ended.DIED),  # the kernel may have done it, for want of memory
        ("kill", (None, None), Ended.DIED),  # nobody can say
        ("term", (7, 7), Ended.OUTSIDE),
        ("fail", (7, 7), Ended.DIED),
        ("crash", (7, 7), Ended.DIED),
    ],
)
async def test_what_a_process_died_of(
    act: str, kills: tuple[int | None, int | None], how: Ended, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of real ones; what the kernel says of memory is the test's."""
    said = iter(kills)
    for module in (child_module, liveness):
        monkeypatch.setattr(module, "oom_kills", lambda: next(said))
    acts = {
        "kill": "os.kill(os.getpid(), 9)",
        "term": "os.kill(os.getpid(), 15)",
        "fail": "1 / 0",
        "crash": "os.abort()",
    }
    system = System(make_config({}), resolve_model(make_config({})))
    memory = Memory(system)
    try:
        spec = system.workers_of(0)[0]
        command = (sys.executable, "-c", f"import os; {acts[act]}")
        child = Child(spec, Output(os.open(os.devnull, os.O_WRONLY)), None, 5, command)
        died: asyncio.Future[Death] = asyncio.get_running_loop().create_future()
        child.start(memory.boot(spec), memory.inherited, lambda: None, died.set_result, died.set_exception)
        assert (await died).how(wanted=False) is how
    finally:
        memory.close()
