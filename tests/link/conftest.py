"""A link beside a clock that the test moves."""

from __future__ import annotations

import time

import pytest

from .administration import Bench


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench()
    monkeypatch.setattr(time, "monotonic", lambda: made.now)
    made.made = made.successor()
    return made
