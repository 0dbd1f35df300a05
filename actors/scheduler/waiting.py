"""The waiting queue: first come, first served, or by priority first. Knows order only, not resources."""

from __future__ import annotations

import heapq
from collections.abc import Container

from .sequence import Sequence


class WaitingQueue:
    """A heap in the order of (priority, arrival). A preempted sequence keeps its arrival, so it comes back first."""

    def __init__(self, by_priority: bool) -> None:
        self._by_priority = by_priority
        self._heap: list[tuple[int, int, int]] = []
        self._members: dict[int, Sequence] = {}  # by ref; a heap entry without member was removed
        self.num_prompt_tokens = 0  # of all of them

    def __len__(self) -> int:
        return len(self._members)

    def __contains__(self, ref: int) -> bool:
        return ref in self._members

    def rank(self, sequence: Sequence) -> tuple[int, int]:
        """The smaller, the sooner it runs and the later it is preempted."""
        return (sequence.priority if self._by_priority else 0, sequence.arrival)

    def add(self, sequence: Sequence) -> None:
        self._members[sequence.ref] = sequence
        self.num_prompt_tokens += sequence.num_prompt_tokens
        heapq.heappush(self._heap, (*self.rank(sequence), sequence.ref))

    def first(self, but: Container[int] = ()) -> Sequence | None:
        """The next to run; it stays in the queue. `but` these refs."""
        if but:
            return min((one for ref, one in self._members.items() if ref not in but), key=self.rank, default=None)
        while self._heap:
            sequence = self._members.get(self._heap[0][2])
            if sequence is not None:
                return sequence
            heapq.heappop(self._heap)
        return None

    def in_order(self) -> list[Sequence]:
        """All of them, the next to run first."""
        return sorted(self._members.values(), key=self.rank)

    def first_begun(self, but: Container[int] = ()) -> Sequence | None:
        """The next of those that have run before: preempted, or gone on with after a death. `but` these refs."""
        begun = (one for ref, one in self._members.items() if one.has_run and ref not in but)
        return min(begun, key=self.rank, default=None)

    def remove(self, ref: int) -> None:
        """Take a member out; its heap entry goes when it comes to the top."""
        self.num_prompt_tokens -= self._members.pop(ref).num_prompt_tokens
        if len(self._heap) > 64 and len(self._heap) > 2 * len(self._members):
            self._heap = [(*self.rank(s), s.ref) for s in self._members.values()]
            heapq.heapify(self._heap)
