"""What happened between two looks, and how it is drawn."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actorserve.actors.observer.rates import BETWEEN_TOKENS, HISTORY, TO_FIRST_TOKEN, Meter, quantile
from actorserve.actors.observer.screen import GRAPH, graph
from actorserve.actors.observer.table import duration, size
from actorserve.actors.protocol.kinds import KINDS
from actorserve.actors.telemetry.gauges import SchedulerGauge
from actorserve.actors.telemetry.snapshot import ActorStatus, Snapshot
from actorserve.shm.histogram import Counted

SIZES = {spec.key: len(spec.bounds) + 1 for kind in KINDS.values() for spec in kind.histograms(64)}


def status(name: str, **values: Any) -> ActorStatus:
    empty: dict[str, Any] = dict.fromkeys(ActorStatus.__struct_fields__, 0)
    texts = {"name": name, "kind": name, "state": "ready", "parked": "", "model": ""}
    return ActorStatus(**{**empty, **texts, "pid": 7, "gauges": {}, **values})


def look(at_s: float, cpu_s: float = 0.0, pid: int = 7, worked: tuple[int, int] = (0, 0), **gauges: int) -> Snapshot:
    """`worked`: the worker's steps, and what they took."""
    every = {gauge.name.lower(): 0 for gauge in SchedulerGauge} | gauges
    worker = status("worker", gauges={"steps": worked[0], "step_ns": worked[1]}, cpu_s=None)
    return Snapshot(at_s, [worker, status("scheduler", gauges=every, cpu_s=cpu_s, pid=pid)], [])


def counted(**buckets: dict[int, int]) -> dict[str, Counted]:
    """Histograms with so many values in some buckets."""
    found = {key: Counted([0] * length, 0) for key, length in SIZES.items()}
    for key, name in (("first", TO_FIRST_TOKEN), ("between", BETWEEN_TOKENS)):
        for bucket, count in buckets.get(key, {}).items():
            found[name].counts[bucket] += count
    return found


def test_rates_are_differences_over_the_time_between() -> None:
    meter = Meter()
    old = {
        "generated": 100,
        "prompted": 50,
        "finished": 1,
        "steps": 10,
        "planned": 1000,
        "prefix_queries": 10,
        "prefix_hits": 1,
    }
    new = {
        "generated": 300,
        "prompted": 60,
        "finished": 2,
        "steps": 20,
        "planned": 1500,
        "prefix_queries": 30,
        "prefix_hits": 6,
    }
    assert meter.add(look(5.0, 1.0, worked=(10, 500), **old), counted()) is None
    now = {"running": 3, "waiting": 2, "blocks_total": 10, "blocks_free": 4}
    rates = meter.add(look(7.0, 2.5, worked=(14, 500 + 8_000_000), **new, **now), counted(first={1: 4}, between={0: 2}))
    assert rates is not None
    assert (rates.tokens_s, rates.prompt_tokens_s, rates.requests_s, rates.steps_s) == (100, 5, 0.5, 5)
    assert (rates.step_tokens, rates.hit_rate, rates.running, rates.waiting) == (50, 0.25, 3, 2)
    assert rates.kv_use == pytest.approx(0.6) and meter.cpu["scheduler"] == 75.0
    assert rates.step_s == pytest.approx(0.002)
    assert rates.to_first_s == pytest.approx(0.003) and rates.between_s == pytest.approx(0.005)
    assert rates.to_first_late_s == pytest.approx(0.001 + 0.95 * 0.004)
    assert list(meter.history["tokens_s"]) == [100]


def test_nothing_happened() -> None:
    meter = Meter()
    meter.add(look(1.0), counted(first={3: 5}))
    rates = meter.add(look(2.0), counted(first={3: 5}))
    assert rates is not None and rates.tokens_s == rates.kv_use == 0
    assert (rates.step_tokens, rates.step_s, rates.hit_rate, rates.to_first_s, rates.between_s) == (None,) * 5


def test_a_new_life_counts_from_nought_and_has_no_cpu_of_before() -> None:
    meter = Meter()
    meter.add(look(1.0, 9.0, worked=(9, 900), steps=100, generated=10), counted())
    rates = meter.add(look(2.0, 0.5, pid=8, worked=(2, 200), steps=3, generated=15), counted())
    assert rates is not None and rates.steps_s == 0 and rates.tokens_s == 5 and rates.step_s is None
    assert meter.cpu == {"scheduler": None, "worker": None}


def test_the_past_is_kept_for_a_while() -> None:
    meter = Meter()
    for second in range(HISTORY + 10):
        meter.add(look(float(second), generated=second**2), counted())
    assert len(meter.history["tokens_s"]) == HISTORY
    assert meter.history["tokens_s"][-1] == 2 * (HISTORY + 9) - 1


@pytest.mark.parametrize(
    ("counts", "share", "value"),
    [
        ([0, 0, 0], 0.5, None),
        ([4, 0, 0], 0.5, 0.5),
        ([2, 2, 0], 0.5, 1.0),
        ([2, 2, 0], 0.75, 2.0),
        ([0, 1, 0], 0.5, 2.0),
        ([0, 0, 5], 0.5, 3.0),
        ([1, 0, 9], 0.05, 0.5),
    ],
)
def test_quantiles(counts: list[int], share: float, value: float | None) -> None:
    assert quantile([1.0, 3.0], counts, share) == value


def test_graphs() -> None:
    assert graph([]) == ""
    assert graph([0.0, 0.0]) == "▁▁"
    assert graph([0.0, 4.0, None, 8.0]) == "▁▅ █"
    assert graph([100.0, *[1.0] * GRAPH]) == "█" * GRAPH, "what is not shown does not count"


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.0, "0.0 ms"),
        (0.00234, "2.3 ms"),
        (0.25, "250 ms"),
        (0.9996, "1.0 s"),
        (59.94, "59.9 s"),
        (60, "1.0 min"),
        (700, "12 min"),
        (7199, "120 min"),
        (7200, "2.0 h"),
        (86400 * 3, "3 d"),
    ],
)
def test_durations(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 KiB"),
        (1 << 20, "1.0 MiB"),
        (250 << 20, "250 MiB"),
        (1 << 50, "1024 TiB"),
    ],
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_an_overview_is_plain_data() -> None:
    snapshot = look(1.0, running=2)
    assert msgspec.json.decode(msgspec.json.encode(snapshot), type=Snapshot) == snapshot
