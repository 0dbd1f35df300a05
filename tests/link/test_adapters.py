"""Adapters of an engine elsewhere: what it is asked to read, and what it must not."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.link import adapters as module
from actorserve.actors.link.adapters import LinkAdapters
from actorserve.actors.model.lora.adapter import stamp_of
from actorserve.actors.protocol.sockets import engine_wire as wire
from actorserve.actors.protocol.topics.adapters import AdapterRead, LoadAdapter
from actorserve.actors.scheduler.lora.adapters import Adapters
from actorserve.actors.scheduler.lora.worker_memory import AdapterLimits
from actorserve.actors.steward import adapters as steward
from actorserve.actors.steward.adapters import StewardAdapters
from actorserve.shm.adapters.registry import AdapterState
from tests.scheduler.lora.scene import Scene


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("adapter_config.json", "adapter_model.safetensors"):
        (tmp_path / name).write_text(name)
    return tmp_path


def test_files_that_are_others_than_those_of_the_load_are_not_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that comes later would have another adapter by the same id."""
    first = Scene()
    beside = Scene(first=first)
    adapter = first.registry.add("own", str(folder), AdapterState.READY, stamp_of(str(folder)))
    assert adapter is not None
    monkeypatch.setattr(
        module, "make_adapters", lambda *_: Adapters(beside.registry, AdapterLimits(9, 9, 1), beside.table)
    )
    context: Any = SimpleNamespace(spec=SimpleNamespace(engine=1), log=logging.getLogger("test"))
    link, sent = LinkAdapters(context, "10.0.0.2:8100"), list[Any]()
    channel: Any = SimpleNamespace(send=sent.append)

    def asked_for() -> list[str]:
        """The digests, of a new connection."""
        sent.clear()
        link.met()
        link.is_there(adapter)
        link.turn({}, channel)
        return [one.digest for one in sent if isinstance(one, wire.Adapter)]

    assert asked_for() == [wire.adapter_digest(folder)]
    os.utime(folder / "adapter_model.safetensors", ns=(1, 1))
    assert asked_for() == [""]
    link.has_read(AdapterRead(0, 0, adapter, "there are other files"))
    assert first.registry.is_refused(adapter, 1) and not first.registry.is_refused(adapter, 0)
    link.met()
    assert not first.registry.is_refused(adapter, 1), "another connection may have it"


class Steward(StewardAdapters):
    """Of a machine whose scheduler has loaded some."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, scene: Scene) -> None:
        monkeypatch.setattr(steward, "AdapterRegistry", lambda *_: scene.registry)
        self.posted: list[Any] = []
        context: Any = SimpleNamespace(
            system=SimpleNamespace(schedulers=["scheduler"], adapters_offset=0),
            segment=None,
            post=lambda to, message: self.posted.append(message),
        )
        super().__init__(context)

    def asked(self, adapter: int, path: Path, digest: str) -> list[Any]:
        """What it answers at once."""
        sent: list[Any] = []
        channel: Any = SimpleNamespace(send=sent.append)
        session: Any = SimpleNamespace(adapters=set())
        self.read(session, channel, wire.Adapter(adapter, str(path), digest))
        return sent


def test_what_is_loaded_there_is_there_whatever_lies_in_the_folder(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And what is not is read only if it is the same as here."""
    there = Scene()
    there.registry.add("7", str(folder), AdapterState.READY, 1)
    made = Steward(monkeypatch, there)
    assert made.asked(7, folder, "") == [AdapterRead(0, 0, 7)]
    assert made.asked(8, folder, "") == [AdapterRead(0, 0, 8, f"there are other files in {folder} there")]
    assert not made.posted
    assert not made.asked(8, folder, wire.adapter_digest(folder))
    assert made.posted == [LoadAdapter(1, "8", str(folder))]
