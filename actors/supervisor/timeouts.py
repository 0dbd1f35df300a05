"""Times within which actors must beat, come up and end. It decides nothing: what follows is the supervisor's."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..options.config import Config
from ..protocol.kinds import KINDS

if TYPE_CHECKING:
    from .processes.child import Child

STOP_S = 5.0  # what an actor without requests of its own gets to end after SIGTERM
LAST_LIFE_S = 15.0  # what a frontend gets that is started to tell its clients: its template may have died, too
KILL_S = 10.0  # what the kernel gets to end a process after SIGKILL


def why_hung(child: Child, config: Config) -> str:
    """Why this actor must be killed, or nothing."""
    assert child.liveness is not None
    liveness = child.liveness
    limit = config.step_timeout if child.traits.computes else config.hang_timeout
    if liveness.stopped_s > limit:  # a start may take an hour, but not of one that does nothing
        return f"it was stopped for {liveness.stopped_s:.1f} s while it started"
    if not liveness.was_up:
        return f"it was not ready after {liveness.age_s:.0f} s" if liveness.age_s > child.traits.start_s else ""
    return f"its loop stood still for {liveness.still_s:.1f} s" if liveness.still_s > limit else ""


def why_useless(in_want_s: float, config: Config) -> str:
    """Why a frontend whose loop turns must be killed all the same, or nothing."""
    return f"it had no descriptor for connections for {in_want_s:.1f} s" if in_want_s > config.hang_timeout else ""


def is_in_order(child: Child, config: Config) -> bool:
    """Its loop turns, it is being started again and has time left, or it is not to run: parked, or left down for a
    while. False for one that should be dead and is not.
    """
    if child.hung:
        return False
    if child.gone.is_set():
        return True
    if child.liveness is None:  # its process is still to be started
        return child.waits or child.age <= child.traits.start_s
    return not why_hung(child, config)


def stop_seconds(requests_s: float) -> float:
    """What the server takes to stop, if every actor uses up its time; `requests_s` is that of running requests."""
    return requests_s + STOP_S * sum(not kind.has_clients for kind in KINDS.values()) + KILL_S
