"""Whether drafts pay, by trial: tokens for each second of steps with drafts on, and with drafts off.

What drafts take is not said by the tokens in a step: whoever proposes them computes, too, some of it in each step. So
both are measured as they are, at about the same number of rows, for which one is usual and the other is tried now and
then. A trial takes WINDOW steps and is compared with the WINDOW usual ones before it, since a machine is not equally
fast all day; of both the slowest and the fastest steps are left out, and the first ones of a trial, in which proposers
catch up. The mean of what trials found, in which the last ones weigh most, says what is usual from then on.

The next trial comes when the usual has taken some times as long as the last one did, twice as many after each that
found the usual right and few after one that did not: what trials cost is a bounded share.
"""

from __future__ import annotations

import math
from collections import deque

WINDOW = 24  # steps that are compared
SETTLING = 4  # first steps of a trial that do not count ...
MOST_SETTLING = 64  # ... and those before the first draft, but no more
TRIMMED = 3  # slowest and fastest steps of a window that do not count
RECENT = 0.3  # of the last trial in what the trials have found, at least
MOST_GAIN = 0.3  # that one trial says, either way: no single one counts more than the next few
ENOUGH = -0.02  # gain (logarithm) from which drafts are on: where nothing is found, off is no better
SOON, RARELY = 8, 32  # times the last trial's seconds between two


class Window:
    """The last steps of one kind."""

    def __init__(self) -> None:
        self._steps: deque[tuple[float, int]] = deque(maxlen=WINDOW)

    @property
    def full(self) -> bool:
        return len(self._steps) == WINDOW

    def add(self, tokens: int, seconds: float) -> None:
        """One more step, in which so many tokens were drawn."""
        self._steps.append((seconds, tokens))

    def speed(self) -> float:
        """Tokens a second."""
        times = sorted(seconds for seconds, _ in self._steps)[TRIMMED:-TRIMMED]
        return sum(tokens for _, tokens in self._steps) / len(self._steps) / (sum(times) / len(times))


class DraftTrials:
    """What is usual for about one number of rows, and what else is tried."""

    def __init__(self, usual: bool = True) -> None:
        """`usual`: whether drafts are on before anything was tried."""
        self.usual = usual
        self.trying = False
        self.trials = 0
        self._gain = 0.0  # the logarithm of the speed with drafts by that without
        self._usual, self._tried = Window(), Window()
        self._since = self._due = 0.0  # seconds of usual steps since the last trial, and until the next one
        self._times = SOON
        self._begin()

    def on(self) -> bool:
        """Whether the next step may have drafts."""
        return self.usual != self.trying

    def observe(self, on: bool, tokens: int, seconds: float, had_drafts: bool) -> None:
        """A step has come back which was planned with drafts on or off."""
        if on == self.usual:
            self._usual.add(tokens, seconds)
            self._since += seconds
            if not self.trying and self._usual.full and self._since >= self._due:
                self.trying = True
                self._begin()
        elif self.trying:
            self._seen += 1
            self._took += seconds
            self._settled |= had_drafts or not on or self._seen > MOST_SETTLING
            if self._settled and self._seen > SETTLING:
                self._tried.add(tokens, seconds)
            if self._tried.full:
                self._decide()

    def _begin(self) -> None:
        self._tried = Window()
        self._seen, self._took, self._settled = 0, 0.0, False

    def _decide(self) -> None:
        with_drafts, without = (self._usual, self._tried) if self.usual else (self._tried, self._usual)
        found = min(max(math.log(with_drafts.speed() / without.speed()), -MOST_GAIN), MOST_GAIN)
        self.trials += 1
        self._gain += max(RECENT, 1 / self.trials) * (found - self._gain)
        better = self._gain > ENOUGH
        self._times = min(2 * self._times, RARELY) if (found > ENOUGH) == self.usual else SOON
        if better != self.usual:
            self.usual, self._usual = better, self._tried
        self.trying = False
        self._since, self._due = 0.0, self._times * self._took
