"""Actors are born warm, from the template, or cold, without it; and nobody notices which."""

from __future__ import annotations

import http.client
import os
import re
import signal
from collections.abc import Iterator

import psutil
import pytest

from tests.server import Server

CPU_ACTORS = ("frontend-0", "renderer-0", "scheduler", "detokenizer-0")


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1", "--max-restarts", "100") as running:
        yield running


def replace(server: Server, name: str) -> None:
    os.kill(server.pids()[name], signal.SIGKILL)
    server.wait_for(rf"{name} is up")
    connection = http.client.HTTPConnection(server.base_url.removeprefix("http://"), timeout=30)
    connection.request("GET", "/ready")
    assert connection.getresponse().read()
    connection.close()


def test_all_actors_are_children_of_the_supervisor_and_lead_their_own_groups(server: Server) -> None:
    """Ctrl-C on a terminal does not reach them, also where the template has forked them."""
    for pid in server.pids().values():
        assert psutil.Process(pid).ppid() == server.pid
        assert os.getpgid(pid) == pid and os.getsid(pid) == pid


def test_replacements_share_the_templates_memory(server: Server) -> None:
    for name in CPU_ACTORS:
        replace(server, name)
        info = psutil.Process(server.pids()[name]).memory_full_info()
        assert info.pss < 0.75 * info.rss, name


def test_the_death_of_the_template_costs_nothing(server: Server) -> None:
    for _ in range(2):
        os.kill(server.pids()["template"], signal.SIGKILL)
        for name in CPU_ACTORS:
            replace(server, name)
        assert "template" in server.pids()


def test_a_template_that_hangs_is_done_without(server: Server) -> None:
    """It is stopped while the only renderer is dead: the renderer comes all the same, if later."""
    os.kill(server.pids()["template"], signal.SIGSTOP)
    replace(server, "renderer-0")
    assert psutil.Process(server.pids()["template"]).status() != psutil.STATUS_STOPPED


def test_after_many_deaths_of_the_template_there_is_none(server: Server) -> None:
    for _ in range(5):
        if (pid := server.pids().get("template")) is None:
            break
        os.kill(pid, signal.SIGKILL)
        server.wait_for("template ended")
    assert "template" not in server.pids()
    for name in CPU_ACTORS:
        replace(server, name)
    assert re.search("template ended", server.output)
