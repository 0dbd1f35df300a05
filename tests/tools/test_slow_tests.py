"""How long a test may take that is slow."""

from __future__ import annotations

import pytest

from tests.support.selection import SLOW_S, give_time


def quick() -> None: ...


@pytest.mark.slow
def long() -> None: ...


@pytest.mark.slow
@pytest.mark.timeout(7)
def told() -> None: ...


def test_what_is_slow_has_more_time_unless_it_says_how_much(request: pytest.FixtureRequest) -> None:
    items = [
        pytest.Function.from_parent(request.node.parent, name=one.__name__, callobj=one) for one in (quick, long, told)
    ]
    give_time(items)
    limits = [mark.args for item in items for mark in item.iter_markers("timeout")]
    assert limits == [(SLOW_S,), (7,)]
