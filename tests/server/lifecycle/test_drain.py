"""`actorserve drain`: requests end, or are cut off when their time is up, and the server has ended."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import aiohttp
import pytest

from tests.support.client import http_session, open_socket
from tests.support.rolling import command, stream
from tests.support.server import WAIT_S, Server, stopped

SCRIPTED = ("--worker", "scripted", "--max-model-len", "2048")


async def _one(session: aiohttp.ClientSession, number: int, tokens: int, begun: set[int]) -> str:
    return await stream(session, number, tokens, lambda: begun.add(number))


def say_first(server: Server, *words: str) -> subprocess.CompletedProcess[str]:
    """The command, while no stream goes on until it has said how many there are."""
    line = [sys.executable, "-m", "actorserve", *words, "--server", f"pid:{server.pid}"]
    with subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout
        with stopped(server, "worker"):
            said = process.stdout.readline() + process.stdout.readline()
        rest, errors = process.communicate(timeout=WAIT_S)
    return subprocess.CompletedProcess(line, process.returncode, said + rest, errors)


async def drain_under_streams(
    server: Server, tokens: int, *words: str, how: Callable[..., Any] = command
) -> tuple[Any, list[Any]]:
    """(how `actorserve drain` ended, what became of streams that ran)"""
    begun: set[int] = set()
    async with http_session(server) as session:
        streams = [asyncio.create_task(_one(session, number, tokens, begun)) for number in range(8)]
        while len(begun) < len(streams):
            await asyncio.sleep(0.001)  # the streams run; what is waited for is a number of events
        drained = await asyncio.to_thread(how, server, "drain", *words)
        return drained, await asyncio.gather(*streams, return_exceptions=True)


@pytest.mark.parametrize("words", [("--timeout", "60"), ()])
def test_a_drain_lets_streams_end(words: tuple[str, ...]) -> None:
    """In a time of its own, or in the server's, which may be without end."""
    with Server(*SCRIPTED, "--scripted-step-ms", "5", "--frontends", "2", "--shutdown-timeout", "inf") as server:
        drained, streams = asyncio.run(drain_under_streams(server, 300, *words, how=say_first))
        assert server.wait() == 0
        assert drained.returncode == 0 and "requests left" in drained.stdout, drained
        assert "the server has ended" in drained.stdout
        assert all(isinstance(text, str) and text for text in streams), streams


def test_a_drain_goes_on_when_a_frontend_dies() -> None:
    """Killed, or terminated by somebody who terminates all processes at once: its successor drains."""
    with Server(*SCRIPTED, "--scripted-step-ms", "5", "--frontends", "2", "--shutdown-timeout", "60") as server:
        streams = asyncio.run(_die_in_a_drain(server))
        assert server.wait() == 0
        assert all(isinstance(text, str) and text for text in streams), streams
        assert len(re.findall("started again to answer what it had", server.read_all())) >= 2


def test_a_frontend_that_is_told_to_end_while_it_is_born_drains() -> None:
    """The signal comes before it can hear it, which is no death of its own: with one restart allowed, none is left."""

    async def end_at_a_birth(server: Server) -> list[Any]:
        begun: set[int] = set()
        async with http_session(server) as session:
            streams = [asyncio.create_task(_one(session, number, 300, begun)) for number in range(4)]
            while len(begun) < len(streams):
                await asyncio.sleep(0.001)
            pids = server.pids()
            os.kill(pids["template"], signal.SIGSTOP)  # births wait
            os.kill(pids["frontend-0"], signal.SIGKILL)
            await asyncio.to_thread(server.wait_for, "frontend-0 ended")
            server.signal(signal.SIGTERM)
            await asyncio.to_thread(server.wait_for, "the server stops")
            os.kill(pids["template"], signal.SIGCONT)
            return await asyncio.gather(*streams, return_exceptions=True)

    with Server(*SCRIPTED, "--scripted-step-ms", "5", "--max-restarts", "1") as server:
        streams = asyncio.run(end_at_a_birth(server))
        assert server.wait() == 0
        assert all(isinstance(text, str) and text for text in streams), streams


async def _die_in_a_drain(server: Server) -> list[Any]:
    begun: set[int] = set()
    async with http_session(server) as session:
        streams = [asyncio.create_task(_one(session, number, 300, begun)) for number in range(8)]
        while len(begun) < len(streams):
            await asyncio.sleep(0.001)
        pids = server.pids()
        with stopped(server, "worker"):  # no stream ends before all of that has come
            server.signal(signal.SIGTERM)
            os.kill(pids["frontend-0"], signal.SIGTERM)
            await asyncio.to_thread(server.wait_for, "the server stops")
            os.kill(pids["frontend-1"], signal.SIGKILL)
            os.kill(pids["scheduler"], signal.SIGTERM)
            await asyncio.to_thread(server.wait_for, r"frontend-1 is up")
            os.kill(server.pids()["frontend-1"], signal.SIGKILL)
        return await asyncio.gather(*streams, return_exceptions=True)


def test_a_request_that_has_begun_to_come_is_answered_in_a_drain() -> None:
    """Its body, or the rest of its head, comes while the server ends."""
    with Server(*SCRIPTED, "--shutdown-timeout", "60") as server:
        body = b'{"prompt": "Once", "max_tokens": 2}'
        head = b"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: %d\r\n"
        with open_socket(server) as one, open_socket(server) as other:
            other.sendall((head % len(body))[:30])
            one.sendall(head % len(body) + b"Expect: 100-continue\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.1 100 ")
            server.signal(signal.SIGTERM)
            server.wait_for("the server stops")
            time.sleep(1.0)  # slow clients
            one.sendall(body)
            other.sendall((head % len(body))[30:] + b"\r\n" + body)
            for client in (one, other):
                assert client.recv(100).startswith(b"HTTP/1.1 200 ")
        assert server.wait() == 0
        assert "get an error" not in server.read_all()


@pytest.mark.parametrize("seconds", ["1", "0"])
def test_a_drain_has_a_time_limit(seconds: str) -> None:
    with Server(*SCRIPTED, "--scripted-step-ms", "50") as server:
        drained, streams = asyncio.run(drain_under_streams(server, 2000, "--timeout", seconds))
        assert server.wait() == 0
        assert drained.returncode == 1 and "time was up with 8 requests left" in drained.stderr
        assert not any(isinstance(text, str) for text in streams)


async def _cut_short(server: Server, numbers: Sequence[signal.Signals]) -> tuple[int, str]:
    """The status of `actorserve drain`, and its error, where these come before eight streams have ended."""
    begun: set[int] = set()
    async with http_session(server) as session:
        streams = [asyncio.create_task(_one(session, number, 2000, begun)) for number in range(8)]
        while len(begun) < len(streams):
            await asyncio.sleep(0.001)
        words = [sys.executable, "-m", "actorserve", "drain", "--timeout", "600", "--server", f"pid:{server.pid}"]
        pipe = asyncio.subprocess.PIPE
        drain = await asyncio.create_subprocess_exec(*words, stdout=pipe, stderr=pipe)
        assert drain.stdout
        while b"8 requests left" not in await drain.stdout.readline():
            pass
        for number in numbers:
            server.signal(number)
            if number is signal.SIGTERM:
                await asyncio.to_thread(server.wait_for, "SIGTERM")
        _, errors = await drain.communicate()
        await asyncio.gather(*streams, return_exceptions=True)
    assert drain.returncode is not None
    return drain.returncode, errors.decode()


@pytest.mark.parametrize(
    "numbers",
    [[signal.SIGTERM], [signal.SIGTERM, signal.SIGTERM], [signal.SIGKILL]],
    ids=["once", "twice", "killed"],
)
def test_a_drain_that_a_signal_cuts_short_says_so(numbers: list[signal.Signals]) -> None:
    """Also where the server is gone before it is asked again."""
    with Server(*SCRIPTED, "--scripted-step-ms", "50", "--shutdown-timeout", "0.2") as server:
        status, errors = asyncio.run(_cut_short(server, numbers))
        assert status == 1 and "the server was ended with 8 requests left, cut off" in errors
        server.wait()
