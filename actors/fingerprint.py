"""How this code lays out shared memory, as a short text: what differs in it cannot serve side by side.

It covers offsets and sizes, the constants of shm's modules, and the fields of all messages and of what stands in slots.
What it cannot see is another meaning of the same words.
"""

from __future__ import annotations

import hashlib
import importlib
from typing import Any

import msgspec

from . import messages
from .gauges import FrontendGauge, SchedulerGauge, WorkerGauge
from .parameters import Generation, Rendition
from .phases import Phase
from .system import System

LAYOUTS = (
    "answers",
    "board",
    "journal",
    "kv_map_layout",
    "logprobs",
    "phases",
    "recent",
    "ring",
    "stamps",
    "table_layout",
)
SPOKEN: tuple[Any, ...] = (
    messages.ToFrontend,
    messages.ToRenderer,
    messages.ToScheduler,
    messages.ToWorker,
    messages.ToDetokenizer,
    Generation,
    Rendition,
)


def fingerprint(system: System) -> str:
    """Equal for two versions of the code that can share the memory of this system."""
    said: list[object] = [system.size, system.lanes, system.mailbox_offsets, system.table_offset, system.kv_map_offset]
    said += [system.table_sizes, system.journal, system.answers, system.recent, system.logprobs, system.actors]
    said += [list(gauges.__members__) for gauges in (FrontendGauge, SchedulerGauge, WorkerGauge, Phase)]
    for name in LAYOUTS:
        module = importlib.import_module(f"actorserve.shm.{name}")
        constants = {key: value for key, value in vars(module).items() if key.isupper() and isinstance(value, int)}
        said.append(sorted(constants.items()))
    said += msgspec.inspect.multi_type_info(SPOKEN)
    return hashlib.sha256(repr(said).encode()).hexdigest()
