"""What a dead frontend has left in its slots, and what becomes of it: read on, kept, or cancelled and freed.

What has ended is free at once (slots.py says what has). Its last prompts may still lie in renderers' lanes, so no other
slot is freed before each renderer has answered Sync.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ...protocol.messages import Cancel
from ...protocol.topics.calls import Sync
from ...runtime.process import Context
from .retained import RetainedAnswers
from .slots import Slots

# What connections of a predecessor get to come, in beats: a process that has no CPU has none, and gives nothing up.
QUIET_BEATS = 10  # behind the last in which one was on its way
MOST_BEATS = 60  # in all: new ones are always on their way to a frontend that is busy


class OrphanedSlots:
    """A predecessor's slots. `reserved` are those from which streams on its connections may go on."""

    def __init__(
        self, context: Context, slots: Slots, retained: RetainedAnswers, numbers: Iterator[int], reserved: Iterable[int]
    ) -> None:
        self._context = context
        self._table = context.table
        self._slots = slots
        self._retained = retained
        self._unsynced: set[int] = set()
        self._reserved = {ref for ref in set(reserved) & set(slots.orphans()) if not self._is_with_media(ref)}
        self._beats = self._quiet = 0
        slots.close_ended(self.is_wanted)
        orphans = slots.orphans()
        self._end_kept(ref for ref in orphans if ref not in self._reserved)
        self._waits = bool(orphans)  # for connections
        if not orphans:
            return
        self._cancel([ref for ref in orphans if not self.is_wanted(ref)])
        for renderer in context.system.of_kind("renderer"):
            number = next(numbers)
            self._unsynced.add(number)
            context.post(renderer.name, Sync(number))

    def _is_with_media(self, ref: int) -> bool:
        """May a media actor still send it to a renderer, after that was synced? It is cancelled before: who handles it
        then finds that nobody wants it.
        """
        arena = self._context.media()
        return arena is not None and self._table.prompt_length(ref) is None and arena.asked(ref) is not None

    @property
    def is_settled(self) -> bool:
        """No renderer has anything of the predecessor's."""
        return not self._unsynced

    def is_wanted(self, ref: int) -> bool:
        """May somebody come who reads this slot, though its sequence has ended?"""
        return ref in self._reserved or self._retained.holds(ref)

    def is_reserved(self, ref: int) -> bool:
        """May a stream of the predecessor's go on from it?"""
        return ref in self._reserved

    def take(self, ref: int) -> None:
        """Somebody reads it."""
        self._reserved.discard(ref)

    def beat(self, adopting: bool) -> None:
        """The loop has turned; `adopting`: a predecessor's connections may be on their way."""
        self._beats += 1
        self._quiet = 0 if adopting else self._quiet + 1
        if self._waits and (self._quiet > QUIET_BEATS or self._beats > MOST_BEATS):
            self._waits = False
            self.give_up(self._reserved)

    def synced(self, number: int) -> None:
        """A renderer has answered."""
        if number in self._unsynced:
            self._unsynced.remove(number)
            if not self._unsynced:
                self._slots.close_orphans(self.is_wanted)

    def _cancel(self, refs: list[int]) -> None:
        """Nobody goes on with these."""
        running = [ref for ref in refs if not self._table.finish(ref)]
        for ref in running:
            self._table.cancel(ref)
        if running:
            self._context.log.info("%d sequences of a predecessor are cancelled", len(running))
            self._context.post_to_owners(Cancel, running)

    def _end_kept(self, refs: Iterable[int]) -> None:
        """Nobody waits for the ends of these: what is kept of them is for whoever asks again."""
        for ref in refs:
            if self._retained.holds(ref) and self._slots.has_ended(ref):
                self._slots.end_heard(ref)

    def give_up(self, refs: Iterable[int]) -> None:
        """Nobody goes on from those that nobody has taken: the clients have gone, and their connections with them."""
        given_up = self._reserved.intersection(refs)
        if not given_up:
            return
        self._reserved -= given_up
        left = [ref for ref in given_up if self._slots.use(ref) is not None]
        self._end_kept(left)
        self._cancel([ref for ref in left if not self.is_wanted(ref)])
        if self.is_settled:
            self._slots.close_orphans(self.is_wanted)
        self._context.flush()
