"""The wait for what nobody tells of: it is looked at again and again, until a deadline that no machine needs."""

from __future__ import annotations

import time
from collections.abc import Callable

WAIT_S = 60.0
PAUSE_S = 0.01


def until(true: Callable[[], object], pause_s: float = PAUSE_S) -> None:
    """Look again and again."""
    deadline = time.monotonic() + WAIT_S
    while not true():
        assert time.monotonic() < deadline, "it has not come true"
        time.sleep(pause_s)
