"""What of this process's memory is mapped, as /proc tells it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple


class Mapping(NamedTuple):
    """One line of /proc/self/smaps, and of what follows it what is asked for here."""

    start: int
    end: int
    permissions: str
    is_of_file: bool
    name: str
    anonymous: int  # KB of pages that are no file's, or no more
    flags: frozenset[str]


def read_mappings() -> list[Mapping]:
    """Of this process."""
    with open("/proc/self/smaps") as smaps:
        return list(parse(smaps))


def mapped_ranges() -> list[tuple[int, int]]:
    """(start, end) of all that this process has mapped."""
    with open("/proc/self/maps") as maps:
        return [_range(line.split(None, 1)[0]) for line in maps]


def parse(smaps: Iterable[str]) -> Iterator[Mapping]:
    """Of such a text's lines. Those of a mapping's own begin with a small letter or a digit."""
    head: list[str] = []
    anonymous = 0
    for line in smaps:
        if line[0] >= "a" or line[0] <= "9":
            head, anonymous = line.split(None, 5), 0
        elif line.startswith("Anonymous:"):
            anonymous = int(line.split()[1])
        elif line.startswith("VmFlags:"):
            name = head[5].strip() if len(head) > 5 else ""
            yield Mapping(*_range(head[0]), head[1], head[4] != "0", name, anonymous, frozenset(line.split()[1:]))


def _range(text: str) -> tuple[int, int]:
    start, _, end = text.partition("-")
    return int(start, 16), int(end, 16)
