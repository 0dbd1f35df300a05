"""What a step takes, by the tokens in it: fitted to those that came back.

Where each token reads the same weights, that is a straight line. Of a model with experts it is none: the first tokens
hit others each, and when all experts are hit, one more costs little. So there is a line for each size of steps, through
those from half to four times as large, and one through all for sizes that have not been seen.
"""

from __future__ import annotations

MEMORY = 0.98  # what a step weighs in the fit when the next one has come
SPREAD = 0.05  # of the steps' sizes (deviation / mean), from which their times say what a token costs
KNOWN = 5  # steps of a size, from which its own line counts


class Line:
    """Seconds of a step by its tokens: a straight line through the last steps."""

    def __init__(self) -> None:
        self._sums = (0.0, 0.0, 0.0, 0.0, 0.0)  # of 1, x, y, x², xy
        self.base = self.token = 0.0
        self._spread = False

    @property
    def known(self) -> bool:
        """Whether it is drawn through some steps, and these are not all of one size."""
        return self._spread and self._sums[0] >= KNOWN

    def is_far(self, seconds: float) -> bool:
        """Whether so much says that the machine did something else."""
        weight, _, y, _, _ = self._sums
        return weight > 10 and seconds > 5 * y / weight

    def observe(self, tokens: int, seconds: float) -> None:
        """One more step."""
        weight, x, y, xx, xy = self._sums
        weight, x, y = weight * MEMORY + 1, x * MEMORY + tokens, y * MEMORY + seconds
        xx, xy = xx * MEMORY + tokens * tokens, xy * MEMORY + tokens * seconds
        self._sums = weight, x, y, xx, xy
        variance = xx / weight - (x / weight) ** 2
        self._spread = variance > (SPREAD * x / weight) ** 2
        if self._spread:
            slope = (xy / weight - x * y / weight**2) / variance
            self.token = min(max(slope, 0.0), y / x)
        self.base = max(0.0, (y - self.token * x) / weight)


class StepCost:
    """The lines of all sizes."""

    def __init__(self) -> None:
        self.whole = Line()
        self._near: dict[int, Line] = {}  # by the bits of a number of tokens

    def observe(self, tokens: int, seconds: float) -> None:
        """One more step."""
        size = tokens.bit_length()
        if (near := self._near.get(size)) is not None and near.is_far(seconds):
            return
        self.whole.observe(tokens, seconds)
        for other in (size - 1, size, size + 1):
            self._near.setdefault(other, Line()).observe(tokens, seconds)

    def seconds(self, tokens: int) -> float:
        """Of a step of so many tokens; 0 as long as nothing is known."""
        line = self._line(tokens)
        return line.base + line.token * tokens

    def share(self, rows: int) -> float:
        """The share of drafts that has to be accepted in steps of so many rows."""
        line = self._line(rows)
        whole = line.base + line.token * rows
        return line.token * rows / whole if whole > 0 else 0.0

    def gain(self, tokens: int, fewer: int) -> float | None:
        """How many times as long a step takes as one of fewer tokens; None if that is not known."""
        line = self._line(tokens)
        less = line.base + line.token * fewer
        return (line.base + line.token * tokens) / less if line.known and less > 0 else None

    def _line(self, tokens: int) -> Line:
        near = self._near.get(tokens.bit_length())
        return near if near is not None and near.known else self.whole
