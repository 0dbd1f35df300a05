"""A connection's transport with a record of what goes through it, for the frontend that may have to go on with it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from typing import Any

from actorserve.http.transport.resume import ENDED, Predecessor
from actorserve.shm.journals.response_journal import ANSWER_STATES, MOST_REFS, NOBODY, ResponseJournal

from .upgrade import Upgrade

NO_STEP = (NOBODY, 0)


class RecordedTransport:
    """Everything that is written is committed to the record first. Implements http.transport.resume.Record.

    `predecessor`: a stream that is gone on with. Until the app says so, nothing is written: what it says, the
    predecessor has said already.
    """

    def __init__(
        self,
        transport: asyncio.Transport,
        answers: ResponseJournal,
        number: int,
        predecessor: Predecessor | None,
        unsent: bytes,
        move: Callable[[int], bool],
    ) -> None:
        self.move = move
        self._transport = transport
        self._hand_over = transport.write
        self.is_closing = transport.is_closing  # which is asked before each write
        self._answers = answers
        self._number = number
        self._kept = number < answers.count
        self._unsent = unsent
        self._step = NO_STEP
        self._ends = False
        self._last = False
        self.predecessor = predecessor
        self.upgraded: Upgrade | None = None
        self.muted = predecessor is not None and predecessor.begun
        self.settled: Callable[[], None] | None = None  # who wants to know that its answer has slots

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    # --- the transport -------------------------------------------------------------------------------------------

    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Commit and hand over."""
        if self.muted or not data:
            return
        self._spoil_behind_last()
        if self._kept:
            choice, state = self._step
            self._answers.commit(self._number, bytes(data), self._ends, choice, state)
            self._step, self._ends = NO_STEP, False
        self._hand_over(data)

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        """As one piece."""
        self.write(b"".join(list_of_data))

    def _spoil_behind_last(self) -> None:
        if self._last:
            self._answers.spoil(self._number)
            self._kept = self._last = False

    # --- the record ----------------------------------------------------------------------------------------------

    def interim(self, data: bytes) -> None:
        if self.muted:
            return
        self._spoil_behind_last()
        if not self._kept or self._answers.interim(self._number, data):
            self._hand_over(data)

    def keep_no_more(self) -> None:
        """What comes behind the answer that is out cannot be told from it: nobody shall go on with the next one."""
        self._last = self._kept

    def let_go(self) -> None:
        """The record is about to be another frontend's: no word of it is written any more, nor anything else."""
        self._kept = self._last = False
        self._unsent = b""
        self._transport.abort()  # reads and writes nothing from here on, and closes without a word

    def stream(self, refs: list[int], seed: int, created: int, replayed: bool = False) -> None:
        if self._kept and len(refs) <= MOST_REFS:
            self._answers.forget(self._number)  # what was streamed before, where the connection has several answers
            self._answers.stream(self._number, refs, seed, created, replayed)
        if self.settled is not None:
            self.settled()
            self.settled = None

    def note(self, choice: int, state: int) -> None:
        if choice < MOST_REFS + ANSWER_STATES:
            self._step = choice, state

    def forget(self) -> None:
        if self._kept:
            self._answers.forget(self._number)

    def note_end(self) -> None:
        self._ends = True

    def go_on(self) -> None:
        self.muted = False
        self.predecessor = None
        if self._unsent:  # it is committed already
            self._transport.write(self._unsent)
            self._unsent = b""


def read_predecessor(answers: ResponseJournal, number: int) -> Predecessor | None:
    """The answer that a predecessor has left on this connection."""
    found = answers.streamed(number)
    if found is None:
        return None
    refs, states, seed, created = found
    first, closed = (state >= ENDED for state in states[len(refs) :])
    return Predecessor(
        refs,
        seed,
        created,
        states[: len(refs)],
        not answers.untouched(number),
        first,
        closed,
        answers.is_replayed(number),
    )
