"""Percentiles, token counts, goodput and the hints of `compare`."""

from __future__ import annotations

import math
from io import StringIO
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from rich.console import Console

from actorserve.actors.bench.load.record import RequestRecord
from actorserve.actors.bench.results.compare import compare, verdict
from actorserve.actors.bench.results.metrics import figures, is_good, spread
from actorserve.actors.bench.results.pareto import frontier, per_user
from actorserve.actors.bench.results.report import UnwrittenError, document, load, save
from actorserve.actors.options.config import ConfigError


def record(*, sizes: list[int] | None = None, usage: int | None = None, error: str = "") -> RequestRecord:
    """Sent at 10 s; chunks after 100, 120, 180 ms; ended after 200 ms."""
    return RequestRecord(10.0, 10.2, [10.1, 10.12, 10.18], sizes or [], 5, usage, error)


def test_percentiles_are_numpys() -> None:
    values = np.random.default_rng(0).exponential(3.0, 997).tolist()
    found = spread(values, (50, 90, 99, 99.9))
    assert found is not None
    assert found["mean"] == pytest.approx(np.mean(values))
    assert [found[key] for key in ("p50", "p90", "p99", "p99.9")] == pytest.approx(
        np.percentile(values, [50, 90, 99, 99.9]).tolist()
    )
    assert spread([]) is None


def test_tokens_that_the_server_counts_with_each_chunk() -> None:
    one = record(sizes=[1, 1, 3], usage=5)
    assert (one.counted, one.output_tokens) == ("chunk", 5)
    assert one.itl_ms() == pytest.approx([20.0, 20.0, 20.0, 20.0])
    assert one.icl_ms() == pytest.approx([20.0, 60.0])
    assert one.tpot_ms == pytest.approx(20.0)
    assert one.ttft_ms == pytest.approx(100.0)
    assert one.e2el_ms == pytest.approx(200.0)


def test_tokens_behind_a_first_chunk_of_several() -> None:
    assert record(sizes=[3, 1, 1], usage=5).tpot_ms == pytest.approx(40.0)


def test_tokens_of_the_final_usage_are_shared_out() -> None:
    one = record(usage=6)
    assert one.counted == "total"
    assert one.itl_ms() == pytest.approx([10.0, 10.0, 30.0, 30.0])
    assert one.tpot_ms == pytest.approx(20.0)


def test_without_usage_a_chunk_is_a_token() -> None:
    one = record()
    assert (one.counted, one.output_tokens) == ("none", 3)
    assert one.itl_ms() == pytest.approx([20.0, 60.0])


@pytest.mark.parametrize(
    ("limits", "good"),
    [
        ({"ttft": 101}, True),
        ({"ttft": 99}, False),
        ({"ttft": 101, "tpot": 19}, False),
        ({"e2el": 201, "tpot": 21}, True),
    ],
)
def test_goodput_wants_every_limit_kept(limits: dict[str, float], good: bool) -> None:
    assert is_good(record(sizes=[1, 1, 3], usage=5), limits) is good


def test_goodput_of_failures_and_of_single_tokens() -> None:
    assert not is_good(record(error="timeout"), {"ttft": 1e9})
    assert is_good(RequestRecord(1.0, 1.1, [1.1], [1], 5, 1), {"tpot": 0.001})


def test_failures_are_counted_by_kind_and_leave_the_rates() -> None:
    records = [
        record(sizes=[1, 1, 3], usage=5),
        record(error="http 503"),
        record(error="http 503"),
        record(error="timeout"),
    ]
    found = figures(records, 2.0, {"ttft": 150})
    assert (found["requests"], found["completed"], found["failed"]) == (4, 1, 3)
    assert found["errors"] == {"http 503": 2, "timeout": 1}
    assert found["request_throughput"] == 0.5
    assert found["output_throughput"] == 2.5
    assert found["total_throughput"] == 5.0
    assert found["goodput"] == 0.5


@pytest.mark.parametrize(
    ("a", "b", "more", "said"),
    [
        ([10.0, 10.1, 9.9], [12.0, 12.1, 11.9], True, "better"),
        ([10.0, 10.1, 9.9], [12.0, 12.1, 11.9], False, "worse"),
        ([10.0, 12.0, 8.0], [10.5, 13.0, 8.0], True, "noise"),
        ([10.0], [20.0], True, "?"),
        ([3.0], [3.0], True, "same"),
    ],
)
def test_only_what_exceeds_the_noise_is_called_a_difference(
    a: list[float], b: list[float], more: bool, said: str
) -> None:
    assert verdict(a, b, more) == said


def test_what_json_has_no_number_for_is_null(tmp_path: Path) -> None:
    save(tmp_path / "a.json", document("serve", {"options": {"ready_timeout": math.inf}}, [{"p99": [math.nan, 1.0]}]))
    found = load(str(tmp_path / "a.json"))
    assert found["options"] == {"ready_timeout": None} and found["points"] == [{"p99": [None, 1.0]}]
    with pytest.raises(UnwrittenError, match="cannot be written"):
        save(Path("/dev/null/a.json"), {})


@pytest.mark.parametrize(
    "text", ['{"schema": "actorserve-bench/1"}', '{"schema": "actorserve-bench/1", "points": [1]}']
)
def test_what_is_no_result(tmp_path: Path, text: str) -> None:
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(ConfigError, match="no result of actorserve bench"):
        load(str(tmp_path / "a.json"))


def test_the_frontier_is_what_nothing_else_is_better_than() -> None:
    def point(name: str, tpot: float | None, throughput: float) -> dict[str, Any]:
        spread = None if tpot is None else {"p50": tpot}
        return {"name": name, "runs": [{"output_throughput": throughput, "latency_ms": {"tpot": spread}}]}

    quick, good = point("quick", 5, 100), point("good", 10, 300)
    worse, many = point("worse", 11, 290), point("many", 50, 900)
    assert frontier([worse, many, quick, good, point("unknown", None, 9999)]) == [many, good, quick]
    assert per_user(good) == 100 and per_user(point("unknown", None, 1)) is None


def test_runs_whose_prompts_were_cached_are_not_called_better_than_others() -> None:
    """Results from before each run had prompts of its own do not say what was cached."""

    def result(throughput: float, **more: float | None) -> dict[str, Any]:
        runs = [{"output_throughput": throughput + noise, **more} for noise in (0.0, 0.1, 0.2)]
        return {"points": [{"name": "8/s", "runs": runs}]}

    def said(a: dict[str, Any], b: dict[str, Any]) -> str:
        out = Console(width=200, file=StringIO())
        assert compare(out, a, b)
        return str(cast(StringIO, out.file).getvalue())

    old, new, slower = result(100.0), result(90.0, cached_share=0.0), result(80.0, cached_share=None)
    assert "worse" not in said(old, new) and "which were cached" in said(old, new)
    for before, after in ((new, slower), (old, result(90.0))):
        assert "worse" in said(before, after) and "which were cached" not in said(before, after)
