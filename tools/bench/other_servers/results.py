"""What has been measured, kept line by line in a file, so that a comparison can be made in pieces.

A line is written when its run has ended; one that was cut short by a kill is passed over, and its run made again.
"""

from __future__ import annotations

import json
from collections import defaultdict
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple

from .report import Figures


class Key(NamedTuple):
    """One run: of a server, in a case, in a round."""

    server: str
    case: str
    round: int


class Results:
    """Figures by run, in the order in which they were first had."""

    def __init__(self, path: Path) -> None:
        """Those of the file, if it is there."""
        self.path = path
        self.figures: dict[Key, Figures] = {}
        self.complaints: dict[Key, list[str]] = {}
        for line in path.read_text().splitlines() if path.exists() else []:
            try:
                found = json.loads(line)
            except json.JSONDecodeError:
                continue
            self._keep(Key(*found["run"]), Figures(**found["figures"]), found["complaints"])

    def add(self, key: Key, figures: Figures, complaints: list[str]) -> None:
        """Known from now on, and in the file."""
        self._keep(key, figures, complaints)
        line = json.dumps({"run": key, "figures": asdict(figures), "complaints": complaints})
        whole = not self.path.exists() or self.path.read_bytes()[-1:] in (b"", b"\n")
        with self.path.open("a") as file:
            file.write(f"{'' if whole else chr(10)}{line}\n")

    def _keep(self, key: Key, figures: Figures, complaints: list[str]) -> None:
        self.figures[key], self.complaints[key] = figures, complaints

    def by_case(self) -> dict[tuple[str, str], list[Figures]]:
        """Of all rounds, by server and case."""
        found: defaultdict[tuple[str, str], list[Figures]] = defaultdict(list)
        for key, figures in self.figures.items():
            found[key.server, key.case].append(figures)
        return dict(found)

    def notes(self) -> list[str]:
        """What makes runs no fair ones."""
        return [
            f"{key.server}, {key.case}, round {key.round + 1}: {one}"
            for key, said in self.complaints.items()
            for one in said
        ]
