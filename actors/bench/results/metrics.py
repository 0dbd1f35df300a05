"""The figures of a run, from the records of its requests: nothing here measures."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from ..load.record import RequestRecord

PERCENTILES = (50.0, 90.0, 99.0)
METRICS = {
    "ttft": "time to first token",
    "tpot": "time per output token",
    "itl": "inter-token latency",
    "icl": "inter-chunk latency",
    "e2el": "end to end",
}
_ONE: dict[str, Callable[[RequestRecord], float | None]] = {
    "ttft": lambda record: record.ttft_ms,
    "tpot": lambda record: record.tpot_ms,
    "e2el": lambda record: record.e2el_ms,
}


def spread(values: Sequence[float], percentiles: Sequence[float] = PERCENTILES) -> dict[str, float] | None:
    """Mean and percentiles; None of no values."""
    if not values:
        return None
    found = {"mean": float(np.mean(values)), "min": float(np.min(values)), "max": float(np.max(values))}
    for which, value in zip(percentiles, np.percentile(values, percentiles), strict=True):
        found[f"p{which:g}"] = float(value)
    return found


def is_good(record: RequestRecord, limits: Mapping[str, float]) -> bool:
    """Whether it went well and within all limits, in ms. Where there is no such figure there is nothing to exceed."""
    if record.error:
        return False
    figures = ((_ONE[name](record), limit) for name, limit in limits.items())
    return all(value is None or value <= limit for value, limit in figures)


def values_of(records: Sequence[RequestRecord], metric: str) -> list[float]:
    """A metric's values in ms, over all requests that went well."""
    if metric == "itl":
        return [value for record in records for value in record.itl_ms()]
    if metric == "icl":
        return [value for record in records for value in record.icl_ms()]
    return [value for record in records if (value := _ONE[metric](record)) is not None]


def _cached_share(records: Sequence[RequestRecord]) -> float | None:
    """Of the prompts' tokens those that the server had computed before; None where it does not say so."""
    told = [record for record in records if record.cached_tokens is not None]
    prompt = sum(record.prompt_tokens for record in told)
    return sum(record.cached_tokens or 0 for record in told) / prompt if prompt else None


def figures(
    records: Sequence[RequestRecord],
    duration_s: float,
    limits: Mapping[str, float] | None = None,
    percentiles: Sequence[float] = PERCENTILES,
) -> dict[str, Any]:
    """All that a run's table and JSON say of its requests."""
    well = [record for record in records if not record.error]
    failed = [record for record in records if record.error]
    output, prompt = sum(record.output_tokens for record in well), sum(record.prompt_tokens for record in well)
    found: dict[str, Any] = {
        "requests": len(records),
        "completed": len(well),
        "failed": len(failed),
        "errors": dict(Counter(record.error for record in failed)),
        "error_examples": {record.error: record.detail for record in reversed(failed)},
        "duration_s": duration_s,
        "prompt_tokens": prompt,
        "cached_share": _cached_share(well),
        "output_tokens": output,
        "chunks": sum(len(record.chunks) for record in records),
        "token_counts": dict(Counter(record.counted for record in well)),
        "request_throughput": len(well) / duration_s,
        "output_throughput": output / duration_s,
        "total_throughput": (output + prompt) / duration_s,
        "latency_ms": {name: spread(values_of(well, name), percentiles) for name in METRICS},
    }
    if limits:
        good = sum(is_good(record, limits) for record in well)
        found |= {"goodput": good / duration_s, "good": good, "goodput_limits_ms": dict(limits)}
    return found
