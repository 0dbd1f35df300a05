"""What the router sees of its replicas, and of itself: no way to one, no sense in what it says, no open files."""

from __future__ import annotations

import asyncio
import errno
import json
import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import aiohappyeyeballs
import pytest

from actorserve.actors.route import upstream
from tests.support.routers import STREAM, asked_of, event, goes_on_from, routed

# --- what looks find -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("code", [errno.EHOSTUNREACH, errno.ENETUNREACH])
async def test_streams_of_a_replica_to_which_no_way_leads_go_on_elsewhere(
    code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its machine is gone: no connection breaks off."""
    cut_off = set[int]()
    connect = aiohappyeyeballs.start_connection

    async def connected(addr_infos: Any, **options: Any) -> socket.socket:
        if addr_infos[0][4][1] in cut_off:
            raise OSError(code, os.strerror(code))
        return await connect(addr_infos, **options)

    monkeypatch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", connected)
    async with routed(detection_limit=0.5) as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.answer = goes_on_from(event("one", 3, 1, 5), breaks=False, gate=gate)
        response = await made.session.post("/v1/completions", json={"prompt": "x", **STREAM})
        assert await response.content.readany() == b'data: "one"\n\n'
        first = asked_of(made).index(1)
        cut_off.add(int(made.replicas[first].address.rpartition(":")[2]))
        assert (await response.read()).endswith(b'data: "two"\n\ndata: [DONE]\n\n')
        assert made.router.fleet.replicas[first].state == "not reachable"
        gate.set()


async def test_looks_go_on_whatever_a_replica_says_of_itself() -> None:
    """JSON nested too deeply to be read ended the router."""
    async with routed(1) as made:
        (replica,) = made.router.fleet.replicas
        made.replicas[0].load = b'{"server_load": %s' % (b"[" * 100_000)
        await made.until(lambda: not replica.is_up)
        assert not made.running.done()
        made.replicas[0].load = b"{}"
        await made.until(lambda: replica.is_up)


# --- no open files -------------------------------------------------------------------------------------------------


@contextmanager
def no_sockets(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The router can open no connection; those that are there go on."""

    async def none_left(*_: object, **__: object) -> None:
        raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))

    with monkeypatch.context() as patch:
        patch.setattr("aiohttp.connector.aiohappyeyeballs.start_connection", none_left)
        yield


async def test_no_open_files_are_no_replicas_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a request nor a look at a replica that cannot be says anything of it."""
    async with routed(detection_limit=0.3, probe_interval=0.02) as made:
        replicas = made.router.fleet.replicas
        async with made.session.get("/health") as answer:  # a connection that is kept
            assert answer.status == 200
        with no_sockets(monkeypatch):
            code, body = await made.ask()
            assert code == 503 and "open files" in json.loads(body)["error"]["message"]
            ends = time.monotonic() + 2 * 0.3
            await made.until(lambda: time.monotonic() > ends)
            assert all(replica.is_up and replica.is_proved for replica in replicas)
            looks = [replica.heard_at for replica in replicas]
        assert (await made.ask())[0] == 200
        await made.until(lambda: all(one.heard_at > at for one, at in zip(replicas, looks, strict=True)))


async def test_a_stream_waits_for_open_files(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upstream, "PAUSE_S", 0.01)
    async with routed(retries=1) as made:
        gate = asyncio.Event()
        for replica in made.replicas:
            replica.answer = goes_on_from(event("one", 3, 1, 5), gate=gate)
        response = await made.session.post("/v1/completions", json={"prompt": "x", **STREAM})
        assert await response.content.readany() == b'data: "one"\n\n'
        moves = made.router.metrics.moves.labels("no open files are left")
        with no_sockets(monkeypatch):
            gate.set()
            await made.until(lambda: moves._value.get() > 3)  # more than there are tries
        assert (await response.read()).endswith(b'data: "two"\n\ndata: [DONE]\n\n')
