"""A server and an engine on a machine of its own: their certificates and weights, and how the engine is."""

from __future__ import annotations

import asyncio
import json
import shutil
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file

from actorserve.actors.model.info import DEMO_FOLDER
from actorserve.actors.observer.attach import attach
from actorserve.actors.telemetry.adapters import registry_of
from actorserve.shm.kv_map.profile import ProfileWords
from tests.support.certificates import Certificates
from tests.support.server import WAIT_S, Server
from tests.support.until import until


def make_proofs(folder: Path) -> dict[str, tuple[str, ...]]:
    """Options of certificates: those of one authority, and of a stranger."""
    made = Certificates(folder)
    options: dict[str, tuple[str, ...]] = {}
    for name, (certificate, key) in {"known": made.client, "stranger": made.stranger}.items():
        both = folder / f"{name}-both.pem"
        both.write_bytes(certificate.read_bytes() + key.read_bytes())
        options[name] = ("--engine-certfile", str(both), "--engine-ca-certs", str(made.authority[0]))
    return options


def write_weights(root: Path) -> None:
    """Two folders with other numbers than the model's, of which one is on the server's machine alone."""
    for name in ("both/new", "here/newer"):
        shutil.copytree(DEMO_FOLDER, root / name)
        (file,) = (root / name).glob("*.safetensors")
        tensors = load_file(file)
        save_file({key: one if one.dim() < 2 else one.flip(0) for key, one in tensors.items()}, file)


def is_there(server: Server) -> None:
    """Until the engine elsewhere computes again, which is a moment behind the line that says that it is there."""
    until(lambda: json.loads(urllib.request.urlopen(f"{server.base_url}/ready").read())["status"] == "ready")


async def begun(engine: Server, asking: list[asyncio.Task[Any]]) -> None:
    """Until it computes some of these: that is read from shared memory, and nothing tells."""
    while not running(engine):
        assert not all(task.done() for task in asking), "all have ended elsewhere"
        await asyncio.sleep(0.01)


async def profiled(engine: Server) -> None:
    """Until its actors are told of a profile: the one of the server goes there behind the answer."""
    attached = attach(pid=engine.pid)
    try:
        words = ProfileWords(attached.segment.words, attached.system.kv_map_offsets[0])
        deadline = time.monotonic() + WAIT_S
        while words.ends < time.monotonic_ns():
            assert time.monotonic() < deadline, engine.output
            await asyncio.sleep(0.01)
    finally:
        attached.close()


def running(engine: Server) -> int:
    """Sequences that it computes."""
    attached = attach(pid=engine.pid)
    try:
        return attached.look().sums("scheduler")["running"]
    finally:
        attached.close()


def loaded(engine: Server) -> int:
    """Adapters that its scheduler knows."""
    attached = attach(pid=engine.pid)
    try:
        registry = registry_of(attached.system, attached.segment)
        return 0 if registry is None else len(registry.all())
    finally:
        attached.close()


@contextmanager
def refused(engine: Server, *options: str, env: dict[str, str] | None = None) -> Iterator[Server]:
    """A server that computes nothing itself, and is not let in."""
    address = engine.base_url.removeprefix("engine://")
    other = Server("--engines", address, "--data-parallel-size", "0", *options, env=env, wait=False)
    try:
        yield other
        other.stop()
    finally:
        other.__exit__(None, None, None)
