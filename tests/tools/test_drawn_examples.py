"""What hypothesis draws is the same in each run, on any machine, and however long it takes."""

from __future__ import annotations

from hypothesis import HealthCheck, settings


def test_neither_chance_nor_time_fails_a_test() -> None:
    assert settings().derandomize and settings().deadline is None and settings().database is None
    assert HealthCheck.too_slow in settings().suppress_health_check


def test_nor_does_time_where_each_run_draws_others() -> None:
    new = settings.get_profile("default")
    assert not new.derandomize and new.deadline is None and HealthCheck.too_slow in new.suppress_health_check
