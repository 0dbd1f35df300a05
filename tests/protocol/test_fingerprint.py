"""Whatever an actor and its successor must have alike changes the fingerprint; what they need not, does not."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from enum import Enum, IntEnum
from pathlib import Path
from struct import Struct
from typing import Any

import msgspec
import pytest

import actorserve.shm
from actorserve.actors.options.config import Config
from actorserve.actors.protocol import fingerprint as module
from actorserve.actors.protocol.fingerprint import LAYOUTS, SHARED_VALUES, fingerprint
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.protocol.request import Generation
from actorserve.actors.protocol.topology import System
from tests.frontend.others import MODEL

READERS = {  # of shm: they have no layout of their own, but for what those of LAYOUTS say
    "accounts.ledger",
    *(
        "end_lock",
        "fence",
        "free_memory",
        "pages",
        "segment",
        "rings.lane_view",
        "kv_map.index",
        "kv_map.map",
        "kv_map.profile",
        "kv_map.residency",
    ),
    *("kv_map.reader", "kv_map.view", "table.arrays", "table.table", "table.token_cursor"),
}


@pytest.fixture
def system() -> Iterator[System]:
    yield System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL)
    module.message_types.cache_clear()


def anew(system: System) -> str:
    """As a process has it that has not looked at messages before."""
    module.message_types.cache_clear()
    return fingerprint(system)


def other(value: Any) -> Any:
    """Something of the same kind."""
    if isinstance(value, Struct):
        return Struct(value.format + "B")
    if isinstance(value, dict):
        return dict(list(value.items())[:-1])
    return value + type(value)(1)


def swapped(enumeration: Any) -> Any:
    """The same names, and two of the values the other way round."""
    members = {name: member.value for name, member in enumeration.__members__.items()}
    first, second = list(members)[-2:]
    members[first], members[second] = members[second], members[first]
    return IntEnum(enumeration.__name__, members)


def enumerations() -> list[tuple[str, str]]:
    names = [*(f"actorserve.shm.{layout}" for layout in LAYOUTS), *SHARED_VALUES]
    found = ((name, key, one) for name in names for key, one in vars(importlib.import_module(name)).items())
    return [(name, key) for name, key, one in found if isinstance(one, type) and issubclass(one, Enum) and len(one) > 1]


@pytest.mark.parametrize(
    ("name", "constant"),
    [
        ("actorserve.shm.rings.mailbox", "STAMPED"),
        ("actorserve.shm.rings.mailbox", "STAMP_SIZES"),
        ("actorserve.shm.rings.trace_ring", "EVENTS"),
        ("actorserve.shm.rings.trace_ring", "EVENT"),
        ("actorserve.shm.layout", "CACHE_LINE"),
        ("actorserve.shm.table.logprobs", "ENTRY"),
        ("actorserve.shm.journals.keyed_log", "HEADER"),
        ("actorserve.shm.board.board", "ORDER"),
        ("actorserve.actors.runtime.in_flight", "CALL"),
        ("actorserve.actors.telemetry.trace_events", "BITS"),
        ("actorserve.actors.protocol.block_hash", "HASH_BYTES"),
        ("actorserve.http.generation.choice", "TOKENS"),
        ("actorserve.actors.protocol.sockets.connection_handover", "HANDED"),
        ("actorserve.actors.protocol.sockets.connection_handover", "GIVEN"),
    ],
)
def test_a_constant_that_differs(name: str, constant: str, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    before, owner = fingerprint(system), importlib.import_module(name)
    monkeypatch.setattr(owner, constant, other(getattr(owner, constant)))
    assert anew(system) != before


def test_all_enumerations_are_looked_at() -> None:
    known = {key for _, key in enumerations()}
    assert known >= {
        "Finish",
        "Ended",
        "EventKind",
        "StartPhase",
        "Stamp",
        "ActorState",
        "Order",
        "SchedulerGauge",
        "WorkerGauge",
    }


@pytest.mark.parametrize(("name", "enumeration"), enumerations())
def test_values_that_are_swapped(name: str, enumeration: str, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    before, owner = fingerprint(system), importlib.import_module(name)
    monkeypatch.setattr(owner, enumeration, swapped(getattr(owner, enumeration)))
    assert anew(system) != before


def test_every_module_of_shared_memory_is_one_or_the_other() -> None:
    [folder] = map(Path, actorserve.shm.__path__)
    found = {".".join(file.relative_to(folder).with_suffix("").parts) for file in folder.rglob("*.py")}
    assert found == set(LAYOUTS) | READERS


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("kept", frozenset({1})),
        ("gauges", IntEnum("Gauges", ["OTHER"])),
        ("phases", IntEnum("Phases", ["OTHER"])),
        ("receives", Generation),
    ],
)
def test_a_kind_that_differs(field: str, value: Any, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(system)
    monkeypatch.setitem(KINDS, "scheduler", replace(KINDS["scheduler"], **{field: value}))
    assert anew(system) != before


def test_histograms_that_have_changed_places(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    before, specs_of = fingerprint(system), system.histogram_specs
    monkeypatch.setattr(system, "histogram_specs", lambda kind: specs_of(kind)[::-1])
    assert anew(system) != before


@pytest.mark.parametrize(("place", "name"), module.KEPT)
def test_what_is_kept_by_keys(place: str, name: str, system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    before, owner = fingerprint(system), importlib.import_module(place)
    longer = msgspec.defstruct(name, [("more", int, 0)], bases=(getattr(owner, name),), frozen=True)
    monkeypatch.setattr(owner, name, longer)
    assert anew(system) != before


def test_times_and_what_only_readers_do_are_no_layout(system: System, monkeypatch: pytest.MonkeyPatch) -> None:
    before = fingerprint(system)
    for name, constant in (("mailbox", "SPIN_S"), ("mailbox", "BACKSTOP_S"), ("lane_view", "TRIES")):
        owner = importlib.import_module(f"actorserve.shm.rings.{name}")
        monkeypatch.setattr(owner, constant, 2 * getattr(owner, constant))
    assert anew(system) == before


def test_another_process_comes_to_the_same(system: System) -> None:
    code = (
        "from actorserve.actors.options.config import Config\n"
        "from actorserve.actors.protocol.fingerprint import fingerprint\n"
        "from actorserve.actors.protocol.topology import System; from tests.frontend.others import MODEL\n"
        "print(fingerprint(System(Config(max_num_seqs=2, max_num_queued_reqs=2), MODEL)))"
    )
    env = {**os.environ, "PYTHONHASHSEED": "7"}
    root = Path(__file__).resolve().parents[2]
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env, cwd=root)
    assert done.stdout.strip() == fingerprint(system)
