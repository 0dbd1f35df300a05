"""Whoever is killed while an actor is forked: the supervisor knows of every process that lives, and mistakes none."""

from __future__ import annotations

import asyncio
import ctypes
import os
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from actorserve.actors.options.config import Config
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.processes import template_process
from actorserve.actors.supervisor.processes.spawn import PYTHON, Process
from actorserve.actors.supervisor.processes.subreaper import PR_SET_CHILD_SUBREAPER, become_subreaper
from actorserve.actors.supervisor.processes.template_process import Template
from actorserve.actors.supervisor.shared_memory import Memory
from tests.frontend.others import MODEL
from tests.support.server import WAIT_S

from . import dying_template


@pytest.fixture
def adoption() -> Iterator[None]:
    """This process adopts what is forked for it, as a supervisor does."""
    become_subreaper()
    yield
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 0)


@pytest.mark.usefixtures("adoption")
@pytest.mark.parametrize("victim", ["template", "forked", "stopped"])
async def test_it_is_known_what_lives(victim: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template dies behind the fork: its actor has answered. The actor dies: its question ends without an answer,
    and no later one is taken for it. An actor that is stopped before it answers, and is not waited for, ends, too.
    """
    monkeypatch.setattr(template_process, "COMMAND", (*PYTHON, dying_template.__name__))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.getcwd(), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv(dying_template.VICTIM, victim)
    said: list[str] = []
    output: Any = SimpleNamespace(say=lambda text, level="": said.append(text), line=lambda name, text, pid: text)
    memory = Memory(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL))
    template = Template(output, memory, memory.system.template)
    loop = asyncio.get_running_loop()
    forked, checked = loop.create_future(), loop.create_future()
    nothing = os.open(os.devnull, os.O_RDWR)
    template.start()
    try:
        template.ask(nothing, nothing, None, forked.set_result)
        template.check("of no server", nothing, checked.set_result)
        async with asyncio.timeout(WAIT_S):
            while victim == "stopped" and not forked.done():
                template.look()  # by which its clock goes
                await asyncio.sleep(0)
            pid = await forked
            assert await checked is None, "it was asked for by a template that died before it could look"
        assert "template ended" in said[-1]
        if victim == "template":
            assert Process(pid).wait(WAIT_S) == 1, "it lived until it read a Boot that is none"
        else:
            assert pid is None
        for stopped in psutil.Process().children() if victim == "stopped" else []:
            if stopped.status() == psutil.STATUS_STOPPED:
                stopped.resume()
                stopped.wait(WAIT_S)
    finally:
        template.close()
        memory.close()
        os.close(nothing)
