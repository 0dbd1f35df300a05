"""What tests of relays, of the Unix socket and of HTTP/2, have in common."""

from __future__ import annotations

import re
from typing import Any

from actorserve.actors.observer.attach import attach
from actorserve.actors.telemetry.snapshot import ActorStatus
from tests.support.server import Server

BODY = {"prompt": "Once upon a time", "temperature": 0, "max_tokens": 150, "ignore_eos": True}


def relay(server: Server, kind: str) -> ActorStatus:
    """As `ps` has it."""
    seen = attach(pid=server.pid)
    try:
        return seen.look().actor(kind)
    finally:
        seen.close()


def whole(client: Any, version: str = "HTTP/1.1") -> str:
    """The text of an answer that is not streamed; `client` is one of httpx."""
    answer = client.post("/v1/completions", json=BODY)
    assert answer.status_code == 200 and answer.http_version == version, answer.text
    text: str = answer.json()["choices"][0]["text"]
    return text


def check_successor(server: Server, before: ActorStatus, metrics: str) -> ActorStatus:
    """Another relay is there in its place, and /metrics has counted it."""
    after = relay(server, before.name)
    assert (after.state, after.restarts) == ("ready", before.restarts + 1) and after.pid != before.pid
    told = re.findall(rf'^actorserve:actor_restarts_total\{{.*"{before.name}".*\}} ([0-9.]+)$', metrics, re.MULTILINE)
    assert [float(number) for number in told] == [after.restarts]
    return after
