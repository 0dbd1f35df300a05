"""What carries KV blocks to the porter, and what keeps them for it: one interface for a folder (folder.py), for other
servers (peers/) and for others' code (plugin.py).

Whoever carries works in threads of its own, and tells by a wake-up that there is more. It may be slow, fail, hang and
lie: a block that does not come in time is computed, and one whose checksum is wrong is none.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from ..telemetry.gauges import PorterGauge


@dataclass(frozen=True)
class Kind:
    """Which blocks are ours now."""

    fingerprint: bytes
    size: int  # of a block


@dataclass
class Reading:
    """A chain of blocks that is read until one is not there; `blocks` grows until `done`."""

    kind: Kind
    keys: list[bytes]
    blocks: list[bytes]
    done: bool = False
    wanted: bool = True


class Carrier(Protocol):
    """Blocks come by it."""

    hits: PorterGauge  # that counts them

    @property
    def answers(self) -> bool:
        """Is it worth asking now?"""

    def read(self, kind: Kind, keys: list[bytes]) -> Reading:
        """Begin; the actor is woken as blocks come."""


class Store(Carrier, Protocol):
    """It keeps what it is given, too."""

    @property
    def takes(self) -> bool:
        """Can more be written now?"""

    def has(self, kind: Kind, key: bytes) -> bool:
        """Was it written or read lately? False says nothing."""

    def write(self, kind: Kind, key: bytes, data: bytes) -> None:
        """It is kept, if that can be."""

    def forget(self, kind: Kind, done: Callable[[], None]) -> None:
        """All blocks of this kind; nothing is read until that is so, then `done` is called, by a thread."""
