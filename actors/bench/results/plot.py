"""Latency against throughput, a line for each file, a dot for each load."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ...options.config import ConfigError
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


def _dots(found: dict[str, Any], metric: str, key: str) -> list[tuple[float, float]]:
    """(throughput, latency) of each load, in the order of throughput."""
    dots = []
    for point in found["points"]:
        x, y = mean_of(point, "output_throughput"), mean_of(point, "latency_ms", metric, key)
        if x is not None and y is not None:
            dots.append((x, y))
    return sorted(dots)
