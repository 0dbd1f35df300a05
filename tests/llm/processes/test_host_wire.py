"""The wire between an LLM object and the process that supervises its actors."""

from __future__ import annotations

import asyncio
import contextlib
import os
import resource
import signal
import socket
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.llm import host, host_wire
from actorserve.actors.llm.host import Host
from actorserve.actors.llm.host_wire import HostEnded, HostReady, decode_config, decode_message, receive, send
from actorserve.actors.llm.link import HostLink
from actorserve.actors.options.config import Config
from actorserve.actors.supervisor.supervisor import Supervisor


@pytest.fixture
def ends() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ours, theirs


@contextlib.contextmanager
def descriptors_left(count: int) -> Iterator[None]:
    """This process can open so many."""
    lowest = os.dup(0)
    os.close(lowest)
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + count, limits[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def test_options_may_be_longer_than_packets_are(ends: tuple[socket.socket, socket.socket]) -> None:
    ours, theirs = ends
    given = Config(chat_template="{# " + "x" * (1 << 20) + " #}")
    beside, told = os.pipe()
    send(ours, given)
    assert decode_config(receive(theirs)[0]) == given
    for reason in ("why", "y" * host_wire.MOST_BYTES):
        send(theirs, HostEnded(1, reason), [told])
        data, (descriptor,) = receive(ours)
        assert decode_message(data) == HostEnded(1, reason)
        assert os.path.sameopenfile(descriptor, told)
        os.close(descriptor)
    theirs.close()
    assert receive(ours) == (b"", [])
    for fd in (beside, told):
        os.close(fd)


def test_what_is_short_takes_no_descriptor(ends: tuple[socket.socket, socket.socket]) -> None:
    """So that an end is told where there is none left."""
    ours, theirs = ends
    with descriptors_left(0):
        send(theirs, HostEnded(1, "why"))
        data, beside = receive(ours)
    assert decode_message(data) == HostEnded(1, "why") and not beside


@pytest.mark.parametrize("left", [0, 1])
def test_a_caller_without_descriptors_for_what_comes_is_told_so(
    ends: tuple[socket.socket, socket.socket], left: int
) -> None:
    """None stays open of those that came."""
    ours, theirs = ends
    link = HostLink.__new__(HostLink)
    process: Any = SimpleNamespace(pid=7)
    link.socket, link._process = ours, process
    send(theirs, HostReady(), [0, 1])
    with descriptors_left(left):
        said = link.hear()
        for _ in range(left):
            os.close(os.dup(0))
    assert isinstance(said, HostEnded) and said.status == 1
    assert said.reason == "what the supervisor (process 7) says cannot be read: Too many open files"


def test_a_supervisor_that_cannot_say_that_it_ends_does_so(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    ended: list[tuple[int, str]] = []
    monkeypatch.setattr(Supervisor, "end", lambda self, status, reason: ended.append((status, reason)))
    supervisor = Host.__new__(Host)
    supervisor.ending, supervisor._caller = asyncio.Event(), ends[1]
    why = "y" * host_wire.MOST_BYTES
    with descriptors_left(0):
        supervisor.end(1, why)
    assert ended == [(1, why)]


def test_a_caller_that_goes_before_it_has_said_anything_is_no_error(
    ends: tuple[socket.socket, socket.socket], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A signal came between the socket and its first packet."""
    ours, theirs = ends
    ours.close()
    monkeypatch.setattr(host, "setproctitle", lambda title: None)
    monkeypatch.setattr(signal, "signal", lambda number, handler: None)
    monkeypatch.setattr(sys, "argv", ["host", str(theirs.detach()), str(os.getpid())])
    assert host.main() == 0
