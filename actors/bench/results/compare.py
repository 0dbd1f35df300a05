"""Two results beside each other, and which differences are more than noise.

A difference counts if it exceeds Student's t (95 %, two-sided) times the standard error of the two means, with the
degrees of freedom of the side that has fewer repetitions. That needs two repetitions on each side at least.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import fmean, variance
from typing import Any

from rich.console import Console
from rich.table import Table

from .report import number, values_of

T_95 = (12.71, 4.30, 3.18, 2.78, 2.57, 2.45, 2.36, 2.31, 2.26, 2.23)  # by degrees of freedom, from 1
T_MORE = 2.2
FIGURES: tuple[tuple[str, tuple[str, ...], bool], ...] = (  # name, where it is, whether more is better
    ("requests/s", ("request_throughput",), True),
    ("output tok/s", ("output_throughput",), True),
    ("goodput/s", ("goodput",), True),
    *(
        (f"{name} {key} ms", ("latency_ms", name, key), False)
        for name in ("ttft", "tpot", "itl", "e2el")
        for key in ("mean", "p50", "p99")
    ),
    ("CPU ms/tok", ("server_cpu_ms_a_token",), False),
    ("PSS bytes", ("server_pss_bytes",), False),
    ("failed", ("failed",), False),
)


def verdict(a: Sequence[float], b: Sequence[float], more_is_better: bool) -> str:
    """`better`, `worse`, `noise`, or `?` where there are too few repetitions to say."""
    if fmean(a) == fmean(b):
        return "same"
    if min(len(a), len(b)) < 2:
        return "?"
    error = math.sqrt(variance(a) / len(a) + variance(b) / len(b))
    free = min(len(a), len(b)) - 1
    if abs(fmean(b) - fmean(a)) <= error * (T_95[free - 1] if free <= len(T_95) else T_MORE):
        return "noise"
    return "better" if (fmean(b) > fmean(a)) == more_is_better else "worse"


def pairs(a: dict[str, Any], b: dict[str, Any]) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """The points of both files at the same load."""
    others = {point["name"]: point for point in b["points"]}
    return [(point, others[point["name"]]) for point in a["points"] if point["name"] in others]


def are_comparable(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Were both measured with prompts of their own in each run? Those from before, which were found in the prefix
    cache, do not say what was cached of them.
    """
    return len({"cached_share" in run for run in (*one["runs"], *other["runs"])}) < 2


def compare(console: Console, a: dict[str, Any], b: dict[str, Any]) -> bool:
    """Print it; False if the files have no load in common."""
    found = pairs(a, b)
    for one, other in found:
        table = Table(title=f"{one['name']} ({len(one['runs'])} and {len(other['runs'])} runs)", title_justify="left")
        for title in ("", "A", "B", "B/A", "B is"):
            table.add_column(title, justify="right" if title in ("A", "B", "B/A") else "left")
        for title, names, more in FIGURES:
            before, after = values_of(one, *names), values_of(other, *names)
            if before and after:
                ratio = f"{fmean(after) / fmean(before):.3f}" if fmean(before) else "-"
                hint = verdict(before, after, more) if are_comparable(one, other) else "-"
                table.add_row(title, number(fmean(before)), number(fmean(after)), ratio, hint)
        console.print(table)
    if any(min(len(one["runs"]), len(other["runs"])) < 2 for one, other in found):
        console.print("?: a single run does not show its noise; --repeat 3 does")
    if not all(are_comparable(one, other) for one, other in found):
        console.print("-: in one of them all runs had the same prompts, which were cached: measure it again")
    return bool(found)
