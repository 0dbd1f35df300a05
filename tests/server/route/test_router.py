"""`actorserve route` before real servers, of which one is frozen and then killed, whole, in the middle of streams."""

from __future__ import annotations

import http.client
import json
import re
import resource
import signal
import threading
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import pytest

from actorserve.actors.runtime.descriptors import DESCRIPTORS
from tests.support.client import WAIT_S, connect
from tests.support.server import LAUNCH, Server
from tests.support.streams.cases import CASES
from tests.support.streams.pieces import answer_of

LONG = {"three choices": 200, "penalties": 200, "stop strings": 200, "logprobs": 200, "schema": 60}
ADMIN = {"Authorization": "Bearer admin"}


@dataclass
class Fleet:
    """A router, and its two replicas: one that stays as it is."""

    router: Server
    steady: Server
    victim: Server

    def drain(self, replica: Server, **how: bool) -> None:
        body = json.dumps({"replica": replica.base_url, **how}).encode()
        request = urllib.request.Request(f"{self.router.base_url}/drain", body, ADMIN)
        with urllib.request.urlopen(request, timeout=WAIT_S) as answer:
            assert answer.status == 200

    def moves(self) -> int:
        with urllib.request.urlopen(f"{self.router.base_url}/metrics", timeout=WAIT_S) as answer:
            return sum(
                int(float(count))
                for count in re.findall(rb"^actorserve_router_moves_total.* (\S+)$", answer.read(), re.M)
            )


@pytest.fixture(scope="module")
def fleet(demo_server: Server) -> Iterator[Fleet]:
    with ExitStack() as stack:
        victim = stack.enter_context(Server("--threads", "1"))
        replicas = f"{demo_server.base_url},{victim.base_url}"
        options = ("--replicas", replicas, "--admin-api-key", "admin", "--detection-limit", "1.5")
        router = stack.enter_context(Server(*options, subcommand="route", wait=False))
        router.base_url = router.wait_for(r"routing at (\S+)")[1]
        for server in (demo_server, victim):
            router.wait_for(f"{server.base_url}: ready", since_start=True)
        yield Fleet(router, demo_server, victim)


def begin(server: Server, name: str) -> http.client.HTTPResponse:
    path, fields = CASES[name]
    body = {**fields, "seed": 11, "max_tokens": LONG[name], "stream": True, "stream_options": {"include_usage": True}}
    connection = connect(server)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", "Connection": "close"})
    return connection.getresponse()


def read_rest(streams: dict[str, http.client.HTTPResponse], begun: dict[str, bytes]) -> dict[str, dict[str, Any]]:
    """All at once, as clients do."""

    def read(name: str) -> None:
        begun[name] += streams[name].read()

    threads = [threading.Thread(target=read, args=(name,)) for name in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
    return {name: answer_of(data) for name, data in begun.items()}


@pytest.mark.parametrize("number", [pytest.param(signal.SIGSTOP, marks=pytest.mark.slow), signal.SIGKILL])
def test_streams_go_on_when_a_whole_server_is_lost(fleet: Fleet, number: signal.Signals) -> None:
    wanted = {name: answer_of(begin(fleet.steady, name).read()) for name in LONG}
    before = fleet.moves()
    fleet.drain(fleet.steady)
    streams = {name: begin(fleet.router, name) for name in LONG}
    begun = {name: stream.read1(64) for name, stream in streams.items()}
    fleet.drain(fleet.steady, undo=True)
    lost = fleet.victim.processes()
    for process in lost:
        process.send_signal(number)
    found = read_rest(streams, begun)
    for name in LONG:
        heads = found[name].pop("heads")
        wanted[name].pop("heads")
        assert len(heads) == 1 and found[name] == wanted[name], name
    assert fleet.moves() > before
    if number is signal.SIGSTOP:
        for process in lost:
            process.send_signal(signal.SIGCONT)
        fleet.router.wait_for(f"{fleet.victim.base_url}: ready")


def test_the_limit_of_open_files_is_raised() -> None:
    """Each request is two connections; the soft limit is often 1,024."""
    limited = ("sh", "-c", 'ulimit -Sn 200; exec "$@"', "sh", *LAUNCH[:-1], "route")
    with Server("--replicas", "http://127.0.0.1:9", command=limited, subcommand="route", wait=False) as router:
        router.wait_for("routing at")
        soft, hard = resource.prlimit(router.pid, resource.RLIMIT_NOFILE)
        assert soft == min(hard, DESCRIPTORS) > 200
