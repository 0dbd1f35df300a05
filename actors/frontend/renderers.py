"""The renderers as a frontend sees them: which one has least to do, and what is posted to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actorserve.http.errors import ApiError

from ..protocol.messages import Message, Prompt, Render, Tokenize
from ..runtime.process import Context
from .media import MediaGate, Record, taken_out


class Renderers:
    """All renderers, and how many sequences of this frontend wait for a prompt from each."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._names = [actor.name for actor in context.system.of_kind("renderer")]
        self._sequences: Counter[str] = Counter()
        self.media = MediaGate(context) if context.system.media is not None else None

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

    def reserve(
        self, prompts: Sequence[Prompt], renderings: Sequence[Mapping[str, Any]], width: int
    ) -> list[Record | None]:
        """Room for the pictures of each prompt that has some, and of which so many answers are made; all, or ApiError
        503.
        """
        records: list[Record | None] = []
        try:
            for prompt, rendering in zip(prompts, renderings, strict=True):
                plain, sources = taken_out(prompt)
                if self.media is not None and sources:
                    records.append(self.media.reserve(Render([], plain, **rendering), sources, width))
                else:
                    records.append(None)
        except ApiError:
            for record in records:
                if self.media is not None and record is not None:
                    self.media.give_back(record)
            raise
        return records

    def render_later(self, renderer: str, record: Record, refs: list[int]) -> None:
        """The same, by way of a media actor."""
        assert self.media is not None
        self._sequences[renderer] += len(refs)
        self.media.render(renderer, record, refs)

    def leaves(self, renderer: str, ref: int) -> None:
        """One sequence was rendered there, or never will be."""
        self._sequences[renderer] -= 1
        if self.media is not None:
            self.media.done(ref)

    def ask(self, message: Message) -> None:
        """Post what needs no slot, to the one with least to do."""
        renderer = self.least_loaded()
        if self.media is not None and isinstance(message, Tokenize):
            plain, sources = taken_out(message.prompt)
            if sources:
                self.media.ask(renderer, msgspec.structs.replace(message, prompt=plain), sources)
                return
        self._context.post_alone(renderer, message)

    def answered(self, call: int) -> None:
        """Nobody waits for what was asked with this number."""
        if self.media is not None:
            self.media.done(call)
