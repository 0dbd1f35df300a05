"""The line on load and throughput: what it says, that it comes in time, and that an idle server says nothing."""

from __future__ import annotations

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from actorserve.actors.supervisor import activity
from actorserve.actors.supervisor.activity import Activity, describe_load, figures_between
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import SchedulerGauge as Gauge


def gauges(**values: int) -> list[int]:
    words = [0] * 32
    for name, value in values.items():
        words[Gauge[name.upper()]] = value
    return words


BEFORE = gauges(generated=100, prompted=50, prefix_queries=40, prefix_hits=10, blocks_total=80, blocks_free=80)
AFTER = gauges(
    **{"running": 3, "waiting": 1, "generated": 350, "prompted": 90, "prefix_queries": 80, "prefix_hits": 40},
    **{"blocks_total": 80, "blocks_free": 60},
)


class Server:
    """As much of the supervisor's memory as is looked at."""

    def __init__(self, interval_s: float) -> None:
        self.words = gauges()
        scheduler = SimpleNamespace(position=1)
        config = SimpleNamespace(log_stats_interval=interval_s)
        self.system = SimpleNamespace(config=config, of_kind=lambda kind: [scheduler])
        self.board = SimpleNamespace(gauges=lambda position: list(self.words))


def test_what_was_done_since_the_last_look() -> None:
    figures = figures_between(BEFORE, AFTER, 10.0)
    assert figures == {
        "running": 3,
        "waiting": 1,
        "prompt_tokens_per_s": 4.0,
        "generated_tokens_per_s": 25.0,
        "kv_use_percent": 25.0,
        "prefix_hit_percent": 75.0,
    }
    assert describe_load(figures) == (
        "3 running, 1 waiting; 4.0 prompt and 25.0 generated tokens/s; 25.0 % of KV memory in use, "
        "75.0 % of prompts from the prefix cache"
    )


def test_nothing_is_said_of_nothing() -> None:
    assert figures_between(AFTER, gauges(generated=350, prompted=90), 10.0) == {}
    assert figures_between(gauges(), gauges(waiting=1), 10.0)["prefix_hit_percent"] is None
    assert "prefix" not in describe_load(figures_between(gauges(), gauges(waiting=1), 10.0))


def test_counts_of_a_new_life_that_begin_again_are_no_negative_rates() -> None:
    assert figures_between(AFTER, gauges(running=1), 10.0)["generated_tokens_per_s"] == 0.0


def test_it_comes_at_each_interval_in_which_something_happened(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now = 0.0
    monkeypatch.setattr(activity, "time", SimpleNamespace(monotonic=lambda: now))
    caplog.set_level(logging.INFO)
    server = Server(10.0)
    looks = Activity(cast(Memory, cast(Any, server)))
    quiet = Activity(cast(Memory, cast(Any, Server(0.0))))
    told = []
    for second in range(100):
        now = float(second)
        if 20 <= second < 45:
            server.words = gauges(running=1, generated=10 * second)
        elif second >= 45:
            server.words = gauges(generated=440)
        looks.look()
        quiet.look()
        if caplog.records:
            told.append(second)
            caplog.clear()
    assert told == [20, 30, 40, 50]
