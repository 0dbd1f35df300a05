"""Which sequences the engine is told of: as many as it has slots for, those first that may run there already."""

from __future__ import annotations

import time

from ..engines.channel import Channel
from ..protocol.sockets import engine_wire as wire
from .adapters import LinkAdapters
from .sequences import RemoteSequence, Sequences
from .unheeded import Unheeded

FULL_S = 0.05  # after which one is sent again that there was no slot for


class SequenceSender:
    """Begins and drops them there."""

    def __init__(self, sequences: Sequences, adapters: LinkAdapters, unheeded: Unheeded) -> None:
        self._sequences, self._adapters, self._unheeded = sequences, adapters, unheeded
        self._slots = 0  # that there are there
        self._all_named = False  # on this connection
        self._full_until = 0.0  # there was no slot for one
        self._dropped: list[int] = []

    def met(self, slots: int) -> None:
        """There is a connection."""
        self._slots, self._all_named, self._full_until = slots, False, 0.0
        self._dropped.clear()

    def lost(self) -> None:
        """There is none: all have to be told again."""
        for held in self._sequences.held.values():
            self._sequences.mark_sent(held, False)

    def turned(self, refs: list[int]) -> None:
        """There was no slot for these."""
        self._full_until = time.monotonic() + FULL_S
        for ref in refs:
            if (held := self._sequences.held.get(ref)) is not None:
                self._sequences.mark_sent(held, False)

    def drop(self, held: RemoteSequence) -> None:
        """It has ended here, or goes on elsewhere."""
        if held.is_sent:
            self._dropped.append(held.ref)

    def send(self, channel: Channel) -> None:
        """As much as can be written now."""
        if self._dropped:
            channel.send(wire.Drop(self._dropped))
            self._dropped = []
        sequences = self._sequences
        if len(sequences.held) > sequences.sent and time.monotonic() >= self._full_until:
            waiting = [one for one in sequences.held.values() if not one.is_sent and self._unheeded.may_send(one)]
            if not self._all_named:
                waiting.sort(key=lambda held: not held.num_generated_tokens)
            for held in waiting[: max(0, self._slots - sequences.sent)]:
                if not self._adapters.is_there(held.adapter) and (self._all_named or not held.num_generated_tokens):
                    continue  # of one that may run there it is said at once that it is wanted
                channel.send(sequences.record_of(held))
                sequences.mark_sent(held, True)
                if not channel.is_writable:
                    return
        if not self._all_named:
            self._all_named = True
            channel.send(wire.AllBegun())
