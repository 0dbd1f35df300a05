"""Results as tables, and as a file that `compare` and `plot` read."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from math import isfinite
from pathlib import Path
from statistics import fmean
from typing import Any

from rich.console import Console
from rich.table import Table

from ...options.config import ConfigError
from .metrics import METRICS

SCHEMA = "actorserve-bench/1"


class UnwrittenError(Exception):
    """What was measured is not in its file: the disk is full, say, or the folder has gone meanwhile."""


def document(kind: str, facts: dict[str, Any], points: list[dict[str, Any]]) -> dict[str, Any]:
    """The whole file."""
    return {"schema": SCHEMA, "kind": kind, "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"), **facts, "points": points}


def check_writable(path: Path) -> None:
    """ConfigError if it cannot be written, before anything is measured for it."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}") from None
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        raise ConfigError(f"{path} cannot be written")


def save(path: Path, found: dict[str, Any]) -> None:
    """Write it; UnwrittenError says why not."""
    text = json.dumps(_finite(found), indent=1, allow_nan=False) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UnwrittenError(f"{path} cannot be written: {error.strerror}") from None


def _finite(value: Any) -> Any:
    """With null for numbers that JSON does not have."""
    match value:
        case dict():
            return {name: _finite(one) for name, one in value.items()}
        case list() | tuple():
            return [_finite(one) for one in value]
        case float() if not isfinite(value):
            return None
    return value


def load(path: str) -> dict[str, Any]:
    """Read what `save` wrote."""
    try:
        found = json.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA or not _has_points(found):
        raise ConfigError(f"{path}: no result of actorserve bench ({SCHEMA})")
    return found


def _has_points(found: dict[str, Any]) -> bool:
    points = found.get("points")
    return isinstance(points, list) and all(isinstance(one, dict) for one in points)


def mean_of(point: dict[str, Any], *names: str) -> float | None:
    """A figure's mean over a point's repetitions; None if any lacks it."""
    values = values_of(point, *names)
    return fmean(values) if values else None


def values_of(point: dict[str, Any], *names: str) -> list[float]:
    """A figure of each repetition; none unless all have it."""
    found = []
    for run in point["runs"]:
        value: Any = run
        for name in names:
            value = value.get(name) if isinstance(value, dict) else None
        if value is None:
            return []
        found.append(float(value))
    return found


def number(value: float | None) -> str:
    """With about three digits that count."""
    if value is None:
        return "-"
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}" if abs(value) >= 100 else f"{value:.3g}"


def show(console: Console, kind: str, points: Sequence[dict[str, Any]], metrics: Sequence[str]) -> None:
    """A table of the loads, one of their latencies, and what went wrong."""
    loads = Table(title=f"bench {kind}", title_justify="left")
    rows: list[tuple[str, tuple[str, ...], float]] = [
        ("done", ("completed",), 1),
        ("failed", ("failed",), 1),
        ("s", ("duration_s",), 1),
        ("requests/s", ("request_throughput",), 1),
        ("output tok/s", ("output_throughput",), 1),
        ("total tok/s", ("total_throughput",), 1),
        ("goodput/s", ("goodput",), 1),
        ("cached %", ("cached_share",), 100),
        ("server CPU s", ("server_cpu_s",), 1),
        ("CPU ms/tok", ("server_cpu_ms_a_token",), 1),
        ("PSS MiB", ("server_pss_bytes",), 2**-20),
        ("client us/chunk", ("client_us_a_chunk",), 1),
    ]
    rows = [row for row in rows if any(mean_of(point, *row[1]) is not None for point in points)]
    loads.add_column("load")
    for title, _, _ in rows:
        loads.add_column(title, justify="right")
    for point in points:
        means = [(mean_of(point, *names), factor) for _, names, factor in rows]
        loads.add_row(point["name"], *(number(None if mean is None else mean * factor) for mean, factor in means))
    console.print(loads)
    console.print(_latencies(points, metrics))
    _show_warnings(console, points)


def _latencies(points: Sequence[dict[str, Any]], metrics: Sequence[str]) -> Table:
    """In ms, a line for each load and metric."""
    table = Table(title="latency in ms", title_justify="left")
    table.add_column("load")
    table.add_column("")
    spreads: list[tuple[tuple[str, ...], str]] = [(("batch_latency_ms",), "whole batch")]
    spreads += [(("latency_ms", name), METRICS[name]) for name in metrics]
    keys = [key for key in _spread_keys(points) if key not in ("min", "max")]
    for key in keys:
        table.add_column(key, justify="right")
    for point in points:
        for names, title in spreads:
            means = [mean_of(point, *names, key) for key in keys]
            if any(mean is not None for mean in means):
                table.add_row(point["name"], title, *map(number, means))
    return table


def _spread_keys(points: Sequence[dict[str, Any]]) -> list[str]:
    for point in points:
        for run in point["runs"]:
            if run["latency_ms"]["e2el"]:
                return list(run["latency_ms"]["e2el"])
    return ["mean"]


def _show_warnings(console: Console, points: Sequence[dict[str, Any]]) -> None:
    for point in points:
        for run in point["runs"]:
            for kind, count in run["errors"].items():
                console.print(f"{point['name']}: {count} failed: {kind}: {run['error_examples'][kind]}", markup=False)
            if run["client_busy"]:
                share = f"{run['client_share']:.0%}"
                console.print(f"{point['name']}: this client used {share} of a core: it may be what was measured")
            if run.get("repeated_prompts"):
                console.print(f"{point['name']}: the server may have known the file's prompts: it takes no cache_salt")
            if uncounted := sum(run["token_counts"].get(how, 0) for how in ("total", "none")):
                console.print(
                    f"{point['name']}: tokens of {uncounted} answers were not counted chunk by chunk; "
                    "their inter-token latencies are shared out evenly"
                )
