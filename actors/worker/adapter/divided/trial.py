"""The plan by which a model is divided, tried on a tiny one: two members in this process, whose logits must be those of
transformers with the whole of it.

Members are threads that take turns: one computes until it needs the others, then the next does. So nothing that they
have in common (kernels and their threads) is ever used by two.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..hooks import Unfit
from ..model import AdaptedModel
from ..probe import probe
from ..verify import Trial, Verdict, compare, failure_words, reference_logits, texts_for
from .cuts import Division

MEMBERS = 2
TURN_S = 120.0  # what the others get for theirs
LENGTH = 512


def verify_divided(model: Any, verdict: Verdict, improve: Callable[[Any], None]) -> None:
    """Of a tiny model that was verified as a whole. Unfit says why it cannot be divided."""
    texts = texts_for(model)
    with torch.inference_mode():
        expected = reference_logits(model, texts)
        turns = Turns(MEMBERS)
        members = [_member(model, verdict, improve, rank, turns) for rank in range(MEMBERS)]
    turns.run([lambda member=member: Trial(member).run(texts) for member in members])  # type: ignore[misc]
    try:
        for found in turns.found:
            compare(expected, found)
    except Unfit as error:
        raise Unfit(f"is not right when it is divided: its small model's {error}") from None


def _member(model: Any, verdict: Verdict, improve: Callable[[Any], None], rank: int, turns: Turns) -> AdaptedModel:
    own, division = copy.deepcopy(model), Division(rank, MEMBERS)
    cuts = division.cuts(own)
    division.take_all(own, cuts)
    if verdict.improved:
        improve(own)
    division.join(own, cuts)
    traits = probe(own, LENGTH)
    adapted = AdaptedModel(own, traits, verdict.tier, torch.float32)
    division.group = Member(rank, turns)
    return adapted


class Turns:
    """Who computes; and what each has come to, by how often it has asked for that of the others."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.turn = 0
        self.ended: set[int] = set()
        self.error: Exception | None = None
        self.condition = threading.Condition()
        self.parts: dict[int, list[Tensor]] = {}
        self.found: list[list[Tensor]] = []

    def run(self, tasks: list[Callable[[], list[Tensor]]]) -> None:
        """All of them, each by a thread; Unfit if one fails."""
        self.found = [[] for _ in tasks]
        threads = [
            threading.Thread(target=self._run, args=(rank, task), daemon=True) for rank, task in enumerate(tasks)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if self.error is not None:
            raise Unfit(f"fails when its small model is divided: {failure_words(self.error)}") from None

    def _run(self, rank: int, task: Callable[[], list[Tensor]]) -> None:
        try:
            self._wait(rank)
            with torch.inference_mode():
                self.found[rank] = task()
        except Exception as error:  # said by run(): whose thread this is not
            self.error = self.error or error
        self.ended.add(rank)
        self._hand_on(rank)

    def exchange(self, rank: int, count: int, x: Tensor) -> list[Tensor]:
        """All members' x of this count."""
        self.parts.setdefault(count, []).append(x)
        self._hand_on(rank)
        self._wait(rank)
        parts = self.parts[count]
        if len(parts) < self.size:
            raise Unfit("asks for sums more often in one part than in another")
        if rank == self.size - 1:
            del self.parts[count]
        return parts

    def _wait(self, rank: int) -> None:
        with self.condition:
            if not self.condition.wait_for(lambda: self.turn == rank or self.error is not None, TURN_S):
                raise Unfit("does not come to an end when it is divided")
        if self.error is not None:
            raise self.error

    def _hand_on(self, rank: int) -> None:
        order = [(rank + step) % self.size for step in range(1, self.size + 1)]
        with self.condition:
            self.turn = next((other for other in order if other not in self.ended), rank)
            self.condition.notify_all()


class Member:
    """One's view of the others."""

    def __init__(self, rank: int, turns: Turns) -> None:
        self.rank, self.size = rank, turns.size
        self.turns, self.count = turns, 0

    def _exchange(self, x: Tensor) -> list[Tensor]:
        self.count += 1
        return self.turns.exchange(self.rank, self.count, x.clone())

    def all_reduce(self, x: Tensor) -> Tensor:
        first, *others = self._exchange(x)
        x.copy_(first)
        for part in others:
            x.add_(part)
        return x

    def all_gather(self, part: Tensor) -> Tensor:
        return torch.cat(self._exchange(part), -1)
