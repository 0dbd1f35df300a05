"""What hypothesis draws is the same in each run, on any machine, and however long it takes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def test_neither_chance_nor_time_fails_a_test() -> None:
    assert settings().derandomize and settings().deadline is None and settings().database is None
    assert HealthCheck.too_slow in settings().suppress_health_check
