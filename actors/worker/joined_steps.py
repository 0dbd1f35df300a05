"""Brief steps of the same rows, of which the scheduler is told two at a time.

To be woken costs the scheduler, a detokenizer and a frontend more than what they do for a token: where steps are brief
their code and data have left the caches in between. So a step that takes less than JOINED_S, and behind which the next
one of the same rows is there already, is published without a wake-up: whoever wakes finds it, and the end of the next
step wakes. A token is late by that one step at most, and a stream moves every 2 * JOINED_S or more often. Longer steps,
whose cost nobody sees beside them, are told of as they end.

Measured (model of 4 layers of 256, one stream, steps of 1.3 to 2.4 ms, `tools/bench/pipeline --streams 1`): see
tools/docs/performance.md.
"""

from __future__ import annotations

from actorserve.shm.rings.mailbox import Inbox, Outbox

from ..protocol.step import JOINED_S, Step


class JoinedSteps:
    """What a worker owes its scheduler. Nothing is owed to anybody once it sleeps, or computes anything else."""

    def __init__(self, outbox: Outbox, inbox: Inbox) -> None:
        self._outbox, self._inbox = outbox, inbox
        self._last: Step | None = None
        self._repeats = self._may_join = self._owes = False

    def begins(self, step: Step) -> None:
        """It is computed now; what is owed does not wait for one that is not like the last."""
        self._repeats = self._last is not None and step.repeats(self._last)
        self._last = step
        if not self._repeats:
            self._pay()

    def ended(self, seconds: float) -> None:
        """That step has, and its answer is posted."""
        self._may_join = self._repeats and not self._owes and seconds < JOINED_S

    def flush(self) -> None:
        """Publish the answer without a wake-up, if that can wait."""
        self._owes = self._owes and not self._outbox.backlog  # what wakes now wakes for both
        if self._may_join and self._outbox.backlog and self._inbox.has_come():
            self._owes = self._outbox.flush(wakes=False)
        self._may_join = False

    def turn(self) -> None:
        """All that came was handled."""
        if self._owes and not self._inbox.has_come():
            self._pay()

    def _pay(self) -> None:
        if self._owes:
            self._owes = False
            self._outbox.wake_sleepers()
