"""Answers that can be asked for again by their key: which slots they are in, and until when.

A kept slot is not closed when its sequence has ended: the request table alone remembers the answer, so that any reader,
also one of a successor of this frontend, is given it from there. Keys and slots stand in shared memory
(shm/journals/keyed_log.py).
"""

from __future__ import annotations

import time

import msgspec

from actorserve.http.generation.idempotency_keys import Kept
from actorserve.shm.journals.keyed_log import KEY_BYTES, KeyedLog
from actorserve.shm.table.table import RequestTable

from ...protocol.messages import FAILURES, Finish

FINISHED_SHARE = 4  # of all slots: so many at most hold answers that have ended
# a request that ended so is done again
AGAIN = FAILURES | {Finish.ABORT}


class RetainedAnswers:
    """One frontend's kept answers."""

    def __init__(self, recent: KeyedLog, table: RequestTable, slots: int, window_s: float) -> None:
        self._recent = recent
        self._table = table
        self._most_finished = slots // FINISHED_SHARE
        self._window_s = window_s
        self._running: dict[bytes, None] = {}
        self._until: dict[bytes, float] = {}  # of those that have ended; in the order of their ends
        self._kept: dict[bytes, Kept] = {}
        self._keys: dict[int, bytes] = {}  # by ref
        for key in recent.keys():
            self._load(key, recent.get(key) or b"")
        self._until = dict(sorted(self._until.items(), key=lambda one: one[1]))

    def _load(self, key: bytes, payload: bytes) -> None:
        """What a predecessor kept, if it can be gone on with."""
        try:
            kept = msgspec.msgpack.decode(payload, type=Kept)
        except msgspec.DecodeError:  # another kind of record
            return
        if not all(self._is_usable(ref) for ref in kept.refs):
            return
        if not all(self._table.finish(ref) for ref in kept.refs):  # servers before wrote the time also of what runs
            kept = msgspec.structs.replace(kept, until=0.0)
        now = time.monotonic()
        if not kept.until or kept.until > now:  # servers before wrote Unix seconds
            self._remember(key, msgspec.structs.replace(kept, until=min(kept.until, now + self._window_s)))

    def _is_usable(self, ref: int) -> bool:
        table = self._table
        current = table.is_current(ref) and table.prompt_length(ref) is not None
        return current and not table.is_cancelled(ref) and table.finish(ref) not in AGAIN

    def _remember(self, key: bytes, kept: Kept) -> None:
        self._kept[key] = kept
        if kept.until:
            self._until[key] = kept.until
        else:
            self._running[key] = None
        self._keys.update(dict.fromkeys(kept.refs, key))

    def keep(self, key: bytes, kept: Kept) -> None:
        """From now on this is the key's answer."""
        assert len(key) == KEY_BYTES
        self.forget(key)
        self._recent.put(key, msgspec.msgpack.encode(kept))
        self._remember(key, kept)

    def find(self, key: bytes) -> Kept | None:
        """The key's answer, if it is one that is to be given again."""
        kept = self._kept.get(key)
        if kept is None or any(self._table.finish(ref) in AGAIN or self._table.is_cancelled(ref) for ref in kept.refs):
            return None
        return kept

    def holds(self, ref: int) -> bool:
        """Is this slot to stay as it is?"""
        return ref in self._keys

    def forget(self, key: bytes) -> list[int]:
        """Its slots are nobody's answer any more."""
        kept = self._kept.pop(key, None)
        if kept is None:
            return []
        if self._until.pop(key, None) is None:  # its record says nothing of an end: no successor is to find it
            del self._running[key]
            self._recent.put(key, b"")
        for ref in kept.refs:
            self._keys.pop(ref, None)
        return kept.refs

    def forget_ref(self, ref: int) -> list[int]:
        """As `forget`, by one of its slots."""
        return self.forget(self._keys[ref]) if ref in self._keys else []

    def outdated(self) -> list[int]:
        """Slots whose time is over, or which are too many, of those that have ended."""
        self._note_ends()
        now, old = time.monotonic(), []
        count = sum(len(self._kept[key].refs) for key in self._until)
        for key, until in self._until.items():
            if until > now and count <= self._most_finished:
                break
            count -= len(self._kept[key].refs)
            old.append(key)
        return [ref for key in old for ref in self.forget(key)]

    def make_room(self) -> list[int]:
        """The slots of the answer that has ended first; empty if there is none."""
        self._note_ends()
        return self.forget(next(iter(self._until))) if self._until else []

    def _note_ends(self) -> None:
        """From the end of an answer on its time counts, however long it has taken."""
        ended = [key for key in self._running if all(self._table.finish(ref) for ref in self._kept[key].refs)]
        until = time.monotonic() + self._window_s
        for key in ended:
            del self._running[key]
            self._until[key] = until
            self._recent.put(key, msgspec.msgpack.encode(msgspec.structs.replace(self._kept[key], until=until)))
