"""What follows from an actor's death: it is started again, alone or with its group; or it has died too often, and the
server ends. One that the server does without for a while (protocol/kinds.py: `rests`) is tried again later.
The supervisor sees the death, and starts.
"""

from __future__ import annotations

import asyncio
import signal
from typing import TYPE_CHECKING

from ..runtime.process import RENEW
from .restart_policy import WITHIN_S

if TYPE_CHECKING:
    from .processes.child import Child
    from .restart_policy import Death
    from .supervisor import Supervisor

REST_S = WITHIN_S  # then none of its restarts counts any more


class Recovery:
    """Of one server."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def follow(self, child: Child, death: Death, was_up: bool, wanted: bool) -> None:
        """Decide it. `was_up`: this life had been ready; `wanted`: it was ended to be replaced."""
        supervisor, say, is_counted = self._supervisor, self._supervisor.output.say, False
        if supervisor.shutdown.begins_last_life(child, death):
            say(f"{death}; it is started once more, to tell its clients", "error")
            supervisor.start(child)
        elif child.stopping:
            self._end_or_drain_on(child, death, was_up)
        elif child.parked:
            supervisor.parking.died(child, death)
        elif child.with_others:  # it dies since another has died: that one's restart was counted; or it is replaced
            child.with_others = False
            how = "replaced" if wanted else "started again with its group"
            say(f"{death}; it is {how}", "info" if wanted else "error")
            self.start_group(child)
        elif not supervisor.ready and not was_up:
            child.gone.set()
            supervisor.end(death.returncode if death.returncode > 0 else 1, f"the server cannot start: {death}")
        elif death.returncode == RENEW:
            say(f"{death}; it is replaced, as it has asked")
            self._end_others(child)
            self.start_group(child)
        elif (
            child.on_trial
            and not was_up
            and not (is_counted := death.returncode < 0 and not death.hung and _may_restart(child))
        ):
            supervisor.parking.failed(child, death)
        elif is_counted or self._is_a_request_to_blame(child, death) or _may_restart(child):
            say(f"{death}; it is started again", "error")
            self._end_others(child)
            self.start_group(child)
        elif child.traits.rests:
            self._let_rest(child, death)
        else:
            self._give_up(child, death)

    def _let_rest(self, child: Child, death: Death) -> None:
        """It has died too often, and the server goes on without it."""
        self._supervisor.output.say(f"{death}; it has died too often, and is left down for {REST_S:.0f} s", "error")
        self._supervisor.memory.board.set_rests(child.spec.position, True)
        child.gone.set()
        asyncio.get_running_loop().call_later(REST_S, self._try_again, child)

    def _try_again(self, child: Child) -> None:
        if not (child.stopping or self._supervisor.ending.is_set()):
            self._supervisor.memory.board.set_rests(child.spec.position, False)
            child.gone.clear()
            self._supervisor.start(child)

    def _end_or_drain_on(self, child: Child, death: Death, was_up: bool) -> None:
        """Its end was wanted; but one that has not answered what it had has a successor that does."""
        supervisor = self._supervisor
        if supervisor.shutdown.leaves_work(child, death):
            unheard = not was_up and death.returncode == -signal.SIGTERM  # told to end before it could hear
            if not unheard and not _may_restart(child):
                self._give_up(child, death)
                return
            level = "info" if unheard else "error"
            supervisor.output.say(f"{death}; it is started again to answer what it had", level)
            supervisor.start(child)
            return
        if not supervisor.reason:
            supervisor.output.say(str(death))
        child.gone.set()
        for member in child.group:  # those that waited for this one are not started any more
            if member.waits:
                member.gone.set()

    def _give_up(self, child: Child, death: Death) -> None:
        """It has died too often, at work or in a drain."""
        supervisor = self._supervisor
        supervisor.end(1, f"{death}; it has died too often, the server gives up")
        if supervisor.shutdown.begins_last_life(child, death):
            supervisor.start(child)  # its clients can be told by nobody else
        else:
            child.gone.set()

    def _is_a_request_to_blame(self, child: Child, death: Death) -> bool:
        """Its successor gives the request up at once, or after some deaths, of which the first alone counts here: a few
        deadly requests must not end the server. One that this life has only found there, and did not come to try again,
        is not what it died of: each death at a start counts.
        """
        what, tries = now = self._supervisor.memory.board.in_flight(child.spec.position)
        return bool(what) and now != child.found and (tries > 1 or (bool(death.hung) and death.was_busy))

    def _end_others(self, child: Child) -> None:
        """Kill those that are started again together with this one."""
        children = self._supervisor.children
        others = [other for other in children if child.traits.group and is_together(other, child)]
        group = [child, *(other for other in others if other is not child and not other.gone.is_set())]
        for member in group:
            member.group = group
        for other in group[1:]:
            other.with_others = True
            other.signal(signal.SIGKILL)

    def start_group(self, child: Child) -> None:
        """Once the last of a group has died, all of it are started: each then sees the others' new lives."""
        child.waits = True
        if not any(member.with_others for member in child.group):
            for member in child.group:
                member.waits = False
                self._supervisor.start(member)


def is_together(one: Child, other: Child) -> bool:
    """Of one kind, and of one engine where the kind is of engines."""
    return one.traits is other.traits and one.spec.engine == other.spec.engine


def _may_restart(child: Child) -> bool:
    """Count a restart of it, if that is not one too many."""
    return child.intensity.allow(asyncio.get_running_loop().time())
