"""How this code lays out shared memory, as a short text: what differs in it cannot serve side by side.

It covers offsets and sizes; constants and enumerations of the modules that say what stands there, with their values;
the fields of all messages and of what stands in slots and is kept by keys; and what a frontend and the supervisor,
which goes on, say to each other. What it cannot see is another meaning of the same words.
"""

from __future__ import annotations

import hashlib
import importlib
from collections.abc import Sequence
from enum import Enum
from functools import cache
from struct import Struct
from typing import Any

import msgspec

from .kinds import KINDS
from .media import MediaItem
from .messages import MediaRequest
from .request import Generation, Rendition
from .topology import System

LAYOUTS = (  # of shm, by name; the others there look at what these lay out
    "accounts.book",
    "accounts.layout",
    "adapters.registry",
    "layout",
    "board.board",
    "board.startup",
    "engine_places",
    "histogram",
    "journals.byte_ring",
    "journals.keyed_log",
    "journals.request_journal",
    "journals.response_journal",
    "kernels",
    "kv_map.layout",
    "kv_map.notes",
    "kv_map.pause",
    "kv_map.sleep",
    "kv_tier.arena",
    "kv_tier.blocks",
    "kv_tier.layout",
    "media.arena",
    "media.entries",
    "media.inbox",
    "rings.mailbox",
    "rings.ring",
    "rings.trace_ring",
    "table.layout",
    "table.logprobs",
    "table.mirostat",
    "table.hidden_states",
    "table.prompt_embeds",
    "table.stamps",
    "table.vectors",
    "weights",
)
SHARED_VALUES = (  # what stands in it: numbers that one life writes and another reads
    "actorserve.actors.accounts.account",
    "actorserve.actors.protocol.block_hash",
    "actorserve.actors.telemetry.gauges",
    "actorserve.actors.runtime.in_flight",
    "actorserve.actors.protocol.sockets.connection_handover",
    "actorserve.actors.protocol.media",
    "actorserve.actors.protocol.messages",
    "actorserve.actors.protocol.request",
    "actorserve.actors.telemetry.startup",
    "actorserve.actors.telemetry.trace_events",
    "actorserve.http.generation.choice",
    "actorserve.http.generation.idempotency_keys",
)
IN_SLOTS = (Generation, Rendition, MediaItem, MediaRequest)
KEPT = (  # by keys, for a frontend's successor
    ("actorserve.http.generation.idempotency_keys", "Kept"),
    ("actorserve.http.generation.idempotency_keys", "Background"),
    ("actorserve.http.openai.responses.stored", "StoredResponse"),
    ("actorserve.http.openai.sessions", "Session"),
    ("actorserve.http.openai.sessions", "Turn"),
)
SOME_SLOTS = 8  # that tell which actors have them


def fingerprint(system: System) -> str:
    """Equal for two versions of the code that can share the memory of this system."""
    said: list[object] = [_places(system)]
    for name in (*(f"actorserve.shm.{layout}" for layout in LAYOUTS), *SHARED_VALUES):
        said.append((name, _constants(name)))
    said += message_types()
    said += (
        (kind.name, _members(kind.gauges), sorted(map(int, kind.kept)), _members(kind.phases))
        for kind in KINDS.values()
    )
    return hashlib.sha256(repr(said).encode()).hexdigest()


@cache
def message_types() -> Sequence[object]:
    """All fields of all messages, and of what stands in slots and is kept."""
    kept = tuple(getattr(importlib.import_module(module), name) for module, name in KEPT)
    return msgspec.inspect.multi_type_info((*(kind.receives for kind in KINDS.values()), *IN_SLOTS, *kept))


def _places(system: System) -> list[object]:
    """Where everything lies, and who has which slot."""
    files, slots = system.files, range(min(system.slots, SOME_SLOTS))
    return [
        *(system.size, system.actors, system.beside, system.board_offset, system.board_blocks),
        *(system.mailbox_offsets, system.trace_offsets, system.phase_offsets, system.lanes),
        [(actor.name, system.histogram_place(actor)) for actor in system.actors],
        *(system.table_offset, system.table_sizes, system.kv_map_offsets, system.kv_map_sizes),
        *(files.journal, files.answers, files.recent, files.logprobs, files.vectors, files.sounds, files.prompt_embeds),
        files.hidden_states,
        *(system.slots_per_frontend, files.media, files.media_inbox, system.accounts, files.kv_tier),
        files.kv_notes,
        [(system.frontend_of(slot), system.detokenizer_of(slot)) for slot in slots],
        [system.first_slot(actor.index) for actor in system.of_kind("frontend")],
    ]


def _constants(name: str) -> list[object]:
    """A module's constants and the values of its enumerations. Times are no layout."""
    told: list[object] = []
    for key, value in sorted(vars(importlib.import_module(name)).items()):
        if isinstance(value, type) and issubclass(value, Enum):
            told.append((key, _members(value)))
        elif key.isupper() and isinstance(value, int | str | bytes | tuple | dict | Struct):
            told.append((key, _described(value)))
    return told


def _members(enumeration: type[Enum]) -> list[tuple[str, object]]:
    return [(name, member.value) for name, member in enumeration.__members__.items()]


def _described(value: Any) -> object:
    """The same text in each process: sets have no order of their own, and formats no text."""
    if isinstance(value, Struct):
        return value.format, value.size
    if isinstance(value, dict):
        return sorted((str(key), _described(one)) for key, one in value.items())
    if isinstance(value, frozenset | set):
        return sorted(map(str, value))
    return str(value)
