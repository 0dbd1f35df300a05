"""Latency against throughput, a line for each file, a dot for each load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...options.config import ConfigError
from .pareto import frontier, place_of
from .report import mean_of

PANELS = (("ttft", "time to first token, ms"), ("tpot", "time per output token, ms"))
KEYS = (("p50", "-"), ("p99", "--"))


def plot(files: Sequence[tuple[str, dict[str, Any]]], out: str) -> None:
    """Draw them into an SVG, PNG or PDF file."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise ConfigError("plot: needs matplotlib: pip install 'actorserve[bench]'") from None
    figure = Figure(figsize=(11, 4.5), layout="constrained")
    for panel, (metric, title) in zip(figure.subplots(1, len(PANELS)), PANELS, strict=True):
        for number, (name, found) in enumerate(files):
            for key, style in KEYS:
                dots = _dots(found, metric, key)
                label = f"{Path(name).stem} {key}"
                panel.plot(
                    [x for x, _ in dots], [y for _, y in dots], style, marker="o", color=f"C{number}", label=label
                )
        panel.set_xlabel("output tokens a second")
        panel.set_ylabel(title)
        panel.set_ylim(bottom=0)
        panel.grid(alpha=0.3)
        panel.legend()
    try:
        figure.savefig(out)
    except (OSError, ValueError) as error:
        raise ConfigError(f"--output {out}: {error}") from None


def plot_pareto(points: Sequence[dict[str, Any]], out: str) -> bool:
    """What all get against what one gets, a dot for each point and a line along the best; False: no matplotlib."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return False
    figure = Figure(figsize=(8, 5.5), layout="constrained")
    panel = figure.subplots()
    placed = [(place, point["name"]) for point in points if (place := place_of(point)) is not None]
    panel.scatter([x for (x, _), _ in placed], [y for (_, y), _ in placed], color="C0", alpha=0.5)
    best = [(place_of(point), point["name"]) for point in frontier(points)]
    line = [(place, name) for place, name in best if place is not None]
    panel.plot([x for (x, _), _ in line], [y for (_, y), _ in line], "-o", color="C1")
    for place, name in line:
        panel.annotate(name, place, fontsize="x-small", xytext=(4, 4), textcoords="offset points")
    panel.set_xlabel("output tokens a second of one user (median)")
    panel.set_ylabel("output tokens a second of all")
    panel.set_ylim(bottom=0)
    panel.grid(alpha=0.3)
    try:
        figure.savefig(out)
    except (OSError, ValueError) as error:
        raise ConfigError(f"{out}: {error}") from None
    return True


def _dots(found: dict[str, Any], metric: str, key: str) -> list[tuple[float, float]]:
    """(throughput, latency) of each load, in the order of throughput."""
    dots = []
    for point in found["points"]:
        x, y = mean_of(point, "output_throughput"), mean_of(point, "latency_ms", metric, key)
        if x is not None and y is not None:
            dots.append((x, y))
    return sorted(dots)
