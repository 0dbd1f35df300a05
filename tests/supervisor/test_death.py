"""What a successor is told of the life before it."""

from __future__ import annotations

import pytest

from actorserve.actors.runtime.in_flight import Ended
from actorserve.actors.supervisor.restart_policy import Death


@pytest.mark.parametrize(
    ("returncode", "hung", "was_busy", "wanted", "how"),
    [
        (0, "", False, True, Ended.REPLACED),
        (-15, "", False, True, Ended.REPLACED),
        (-9, "", False, True, Ended.REPLACED),
        (0, "", False, False, Ended.DIED),
        (-9, "", False, False, Ended.DIED),
        (1, "", False, True, Ended.DIED),  # it was told to end, and failed
        (-11, "", False, True, Ended.DIED),
        (-9, "its loop stands still", True, True, Ended.HUNG),
        (-9, "its loop stands still", False, True, Ended.DIED),
        (-9, "its loop stands still", True, False, Ended.HUNG),
    ],
)
def test_how_it_ended(returncode: int, hung: str, was_busy: bool, wanted: bool, how: Ended) -> None:
    death = Death(actor="worker", pid=1, returncode=returncode, uptime=1.0, restarts=0, hung=hung, was_busy=was_busy)
    assert death.how(wanted) is how
