"""What is measured: which model, its weights in which form, by how many threads, and under which loads."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import NamedTuple

from .checkpoint import FLOATS, QUANTISED

ANSWER = 48  # tokens
SHORT = 128  # tokens of a prompt, up to which every client's sequence is tried once before
LEAST_LENGTH = 1152  # tokens of a sequence that servers have room for
ROOM = 80  # tokens beyond the longest


class Case(NamedTuple):
    """Clients that each ask at once again; tokens of prompts and answers; requests of a run."""

    clients: int
    prompt: int
    answer: int
    requests: int

    @property
    def name(self) -> str:
        """As --cases names it."""
        return f"{self.clients}x{self.prompt}"

    @property
    def warm_ups(self) -> int:
        """Requests that are not counted."""
        return self.clients if self.prompt <= SHORT else 1


class Group(NamedTuple):
    """Cases that one start of a server serves."""

    model: str
    weights: str
    threads: int
    cases: tuple[Case, ...]

    @property
    def length(self) -> int:
        """Tokens of the longest sequence, with room."""
        return max(LEAST_LENGTH, *(case.prompt + case.answer + ROOM for case in self.cases))

    @property
    def sequences(self) -> int:
        """That run at once, at most."""
        return max(case.clients for case in self.cases)

    def title(self, case: Case) -> str:
        return f"{self.model} {self.weights}, {case.clients} × {case.prompt}/{case.answer}"


TINY = (Case(1, 64, 64, 8), Case(32, 128, 64, 96), Case(64, 16, 32, 256))
LARGE = tuple(
    Case(clients, prompt, ANSWER, requests)
    for prompt, counts in ((64, (4, 4, 16, 64)), (1024, (2, 2, 8, 32)))
    for clients, requests in zip((1, 2, 8, 32), counts, strict=True)
)
LONG = (Case(1, 8192, ANSWER, 3),)
GROUPS = (
    Group("tiny", FLOATS, 1, TINY),
    Group("tiny-16k", FLOATS, 1, LONG),
    *(Group("0.6B", weights, 2, LARGE) for weights in (FLOATS, *QUANTISED)),
)


def chosen(models: Collection[str], weights: Collection[str], names: Collection[str], quick: bool) -> Iterator[Group]:
    """The groups of these models and weights, with the cases that are named, or all."""
    for group in GROUPS:
        if group.model not in models or group.weights not in weights:
            continue
        cases = tuple(case for case in group.cases if not names or case.name in names)
        if quick:
            cases = tuple(case._replace(requests=max(case.clients, case.requests // 3)) for case in cases)
        if cases:
            yield group._replace(cases=cases)
