"""What the supervisor answers on its control socket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .supervisor import Supervisor


class Verbs:
    """Each method named in `add_all` is a verb."""

    def __init__(self, supervisor: Supervisor) -> None:
        self._supervisor = supervisor

    def add_all(self) -> None:
        """Let the control socket answer them."""
        self._supervisor.control.add("status", self.status)

    async def status(self, arguments: dict[str, Any]) -> dict[str, Any]:
        """How the supervisor itself sees the server."""
        supervisor = self._supervisor
        return {
            "ready": supervisor.ready,
            "ending": supervisor.ending.is_set(),
            "actors": [
                {"name": child.name, "pid": child.pid, "up": child.up, "restarts": child.restarts, "hung": child.hung}
                for child in supervisor.children
            ],
        }
