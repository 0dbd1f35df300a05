"""Ends that wait for steps: with its finish word a slot is its frontend's again, and may be another request's at once.

Members of a tensor-parallel group read a slot each for itself, when its row begins in a step and while a step computes
tokens that were in its log then. What they read decides how much a row computes (drafts, tokens that a grammar leaves
no choice of), and members that do not compute the same cannot add up what they have. So while a step is under way that
may read the slot, there is written to it by
    frontend     the cancel word; another use only behind the finish word
    detokenizer  the stop word
    scheduler    tokens of the log behind those that the step was told of; the finish word when the step has come back
    renderer     nothing: prompt, rendition and hashes are written once for each use
Only ends whose reason stands in the slot wait, the cancel or the stop word: a scheduler may die meanwhile, and its
successor would know nothing of others and go on. Those, an operator's and an error's, are told at once.
A sequence that goes to another engine ends here, too, and may end there before the step is back: likewise it has the
engine word after that. A successor has it still, and gives it away, or goes on with it.

A step comes back by one member for all, when each has given its part of the first sum, which it does behind all that it
reads. What a dead scheduler had sent was run when the worker is met, or is gone with it: until then no end is told of
what that one may have had in a step. One process alone may read the next use: its row is nobody's any more.

That is no promise. A late member may still find the next use
    - where an end is told at once (above)
    - where an epoch ends while steps run: one has failed, the engine sleeps, or is wanted again while it gives all away
    - on a GPU, whose worker says that it is there while another member reads for a step that was launched before
What comes of it ends as every mismatch between members does, in workers that are started anew and rows that are
computed again. With --also it may be another model's, whose ids are read by worker/start/token_log.py.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable


class DeferredEnds:
    """In the order of the steps that they wait for."""

    def __init__(self) -> None:
        self._pending: deque[tuple[int, int, Callable[[], None]]] = deque()

    def __bool__(self) -> bool:
        return bool(self._pending)

    def __contains__(self, ref: int) -> bool:
        return any(ref == pending for _, pending, _ in self._pending)

    def add(self, step: int, ref: int, tell: Callable[[], None]) -> None:
        """This one has ended, of which steps up to `step` may read the slot; `tell` stores the word that says so."""
        self._pending.append((step, ref, tell))

    def tell(self, step: int | None) -> None:
        """Those that wait for none behind `step`, which has come back; None: no step is under way."""
        while self._pending and (step is None or self._pending[0][0] <= step):
            self._pending.popleft()[2]()
