"""What requests may ask for and an engine elsewhere does nothing of. On a GPU some parameters do nothing
(CPU_ONLY); an engine without --scheduling-policy priority takes whoever comes first. It says so when it is met.

Who asks for one of the former, such as a watermark, goes to an engine of this machine, which heeds it (where none
could, the API has refused it), and waits for one that computes; without engines here it ends, and its client is told
why. An order is no promise, and is only told of.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Protocol

import msgspec

from ..protocol.request import CPU_ONLY, Generation
from ..protocol.sockets.engine_facts import PRIORITY
from ..runtime.process import Context
from .sequences import RemoteSequence


class Takes(Protocol):
    """Who has the sequences (giving.py)."""

    def give_home(self, some: list[RemoteSequence]) -> None:
        """To engines of this machine."""


class Unheeded:
    """Of one link. `waits`: somebody who cannot be computed there is here."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._by_priority = context.config.scheduling_policy == PRIORITY
        self._decode = msgspec.msgpack.Decoder(Generation).decode
        self._lacks: list[str] = []  # of what a CPU alone heeds, the fields that the engine does not
        self.waits = False

    def met(self, fields: Iterable[str], name: str, held: Iterable[RemoteSequence]) -> None:
        """The engine, which says this of itself."""
        named, log = set(fields), self._context.log
        self._lacks, self.waits = [field for field in CPU_ONLY if field in named], False
        for one in held:
            one.is_heeded = False
        if self._lacks:
            log.warning("the engine at %s does nothing of %s: others are asked", name, ", ".join(self._lacks))
        if PRIORITY in named and self._by_priority:
            log.warning("the engine at %s takes whoever comes first: %s does nothing there", name, PRIORITY)

    def may_send(self, held: RemoteSequence) -> bool:
        return not self._lacks or held.is_heeded

    def turn(self, held: Mapping[int, RemoteSequence], taker: Takes) -> None:
        """Before anything is sent there."""
        if not self._lacks:
            return
        some = []
        for one in held.values():
            if not one.is_heeded:
                params = self._decode(self._context.table.params(one.ref))
                one.is_heeded = not {*self._lacks}.intersection(params.sampling.cpu_only())
                if not one.is_heeded:
                    some.append(one)
        if some:
            taker.give_home(some)
        self.waits = any(one.ref in held for one in some)
