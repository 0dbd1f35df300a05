"""The renderers as a frontend sees them: which one has least to do, and what is posted to it."""

from __future__ import annotations

from collections import Counter

from ..protocol.messages import Message, Render
from ..runtime.process import Context


class Renderers:
    """All renderers, and how many sequences of this frontend wait for a prompt from each."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = [actor.name for actor in context.system.of_kind("renderer")]
        self._sequences: Counter[str] = Counter()

    @property
    def in_flight(self) -> int:
        """Sequences whose prompt is being rendered, or waits for it."""
        return self._sequences.total()

    def least_loaded(self) -> str:
        """The name of the one with the fewest sequences."""
        return min(self._names, key=self._sequences.__getitem__)

    def render(self, renderer: str, message: Render) -> None:
        """Post it, and count its sequences until each `leaves`."""
        self._sequences[renderer] += len(message.refs)
        self._context.post_alone(renderer, message)

    def leaves(self, renderer: str) -> None:
        """One sequence was rendered there, or never will be."""
        self._sequences[renderer] -= 1

    def ask(self, message: Message) -> None:
        """Post what needs no slot, to the one with least to do."""
        self._context.post_alone(self.least_loaded(), message)
