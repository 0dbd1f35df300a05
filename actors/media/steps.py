"""How long a film or sound may take to read, and in how small parts that is done."""

from __future__ import annotations

import time
from collections.abc import Generator, Iterator
from typing import TypeVar

from .refused import MediaRefused

MOST_S = 30.0  # of this thread, for one film or sound
PART_S = 0.05  # after which others have their turn
T = TypeVar("T")


def in_parts(steps: Iterator[T | None], most_s: float = MOST_S) -> Iterator[T | None]:
    """What `steps` makes, and None after each part of the time that it takes until then."""
    spent, begun = 0.0, time.thread_time()
    for made in steps:
        if made is None and time.thread_time() - begun < PART_S:
            continue
        spent += time.thread_time() - begun
        if spent > most_s:
            raise MediaRefused(f"it takes longer than {most_s:g} s to read; a shorter or smaller one takes less.", 422)
        yield made
        begun = time.thread_time()


def made_of(steps: Iterator[T | None]) -> Generator[None, None, T]:
    """Goes on as they do, and returns what they make."""
    for made in steps:
        if made is not None:
            return made
        yield
    raise AssertionError("it made nothing")
