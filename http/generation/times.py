"""When what happened to a request, as the engine knows it: for answers that tell it, for logs and for traces."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class JobTimes:
    """In ns of CLOCK_MONOTONIC; of several choices the first beginning and the last end. 0 is what never happened."""

    arrival: int = 0  # it was given its slots, and sent to a renderer
    render_begun: int = 0
    rendered: int = 0
    admitted: int = 0
    scheduled: int = 0
    first_token: int = 0
    first_told: int = 0
    last_token: int = 0
    preemptions: int = 0
    deaths: int = 0  # of schedulers and workers that it has survived
    drafted: int = 0  # tokens, of all choices
    accepted: int = 0  # of these

    @property
    def before(self) -> int:
        """ns until its prompt was begun: rendering and waiting."""
        return _between(self.arrival, self.scheduled)

    @property
    def prefill(self) -> int:
        """ns from there to the first token."""
        return _between(self.scheduled, self.first_token)

    @property
    def decode(self) -> int:
        """ns from there to the last token."""
        return _between(self.first_token, self.last_token)

    @property
    def total(self) -> int:
        """ns from its arrival to its last token."""
        return _between(self.arrival, self.last_token)


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far a choice's prompt has come, in tokens."""

    choice: int
    total: int
    cached: int
    computed: int  # those among them


def _between(start: int, end: int) -> int:
    return end - start if start and end >= start else 0
