"""How actors are started warm: forked by template processes (prefork.py), which the supervisor asks through sockets.

Each answers in order; when there is nothing to ask it, whether it is there. If it dies, or does not answer, whoever
waits for it is started cold, and another one is started, as often as any actor. One of a kind's own is forked by the
first, or started cold where there is none to ask.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..output import Output
from .first_template import Ends
from .template_process import Branch, Template

if TYPE_CHECKING:
    from ..shared_memory import Memory


class Templates:
    """All that are of the same code: the first one, and those of kinds that have their own."""

    def __init__(self, output: Output, memory: Memory, on_trial: bool = False, born: Ends | None = None) -> None:
        """Those `on_trial` are not started again until they have `passed`, nor shown on the board until `accepted`.
        `born`: the first one, if it is there already.
        """
        system = memory.system
        self.first = Template(output, memory, system.template, on_trial, born=born)
        self._own = {
            kind: Template(output, memory, spec, on_trial, Branch(kind, self.first, system.imports_of(kind)))
            for kind, spec in system.own_templates.items()
        }

    @property
    def all(self) -> list[Template]:
        return [self.first, *self._own.values()]

    def of(self, kind: str) -> Template:
        """The one that forks actors of this kind."""
        return self._own.get(kind, self.first)

    @property
    def is_starting(self) -> bool:
        """Are there processes of which the answer has not come yet?"""
        return any(template.is_starting for template in self.all)

    @property
    def pids(self) -> list[int]:
        return [template.pid for template in self.all]

    def start(self) -> None:
        """Start the processes; OSError if that cannot be."""
        for template in self.all:
            template.start()

    def passed(self) -> None:
        """They have proved themselves: from now on they may die as others do."""
        for template in self.all:
            template.passed()

    def accepted(self) -> None:
        """They are the server's only ones from now on."""
        for template in self.all:
            template.accepted()

    def look(self) -> None:
        """LOOK_S have passed."""
        for template in self.all:
            template.look()

    def retire(self) -> None:
        """Let go of the processes for good; who still waits for them is started cold."""
        for template in reversed(self.all):
            template.retire()

    def close(self) -> None:
        """Let go of the processes for good; they are killed."""
        for template in reversed(self.all):
            template.close()
