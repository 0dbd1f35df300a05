"""Which points of a sweep are worth having: none other has more throughput at as many tokens a second for one user."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .report import mean_of


def per_user(point: dict[str, Any]) -> float | None:
    """Tokens a second that one stream gets, by the median time per output token."""
    tpot = mean_of(point, "latency_ms", "tpot", "p50")
    return 1e3 / tpot if tpot else None


def place_of(point: dict[str, Any]) -> tuple[float, float] | None:
    """(tokens a second of one user, of all); None where it was not measured."""
    x, y = per_user(point), mean_of(point, "output_throughput")
    return None if x is None or y is None else (x, y)


def frontier(points: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """From the most for all to the most for one."""
    placed = [(place, point) for point in points if (place := place_of(point)) is not None]
    found: list[dict[str, Any]] = []
    most = 0.0
    for (_, throughput), point in sorted(placed, key=lambda one: (-one[0][0], -one[0][1])):
        if throughput > most:
            most = throughput
            found.append(point)
    return found[::-1]
