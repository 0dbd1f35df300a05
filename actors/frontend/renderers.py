"""The renderers as a frontend sees them: which one has least to do, and what is posted to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from actorserve.http.errors import ApiError

from ..protocol.messages import Message, Render
from ..protocol.topics.calls import Tokenize
from ..protocol.topics.io_processors import PostProcess
from ..protocol.topics.prompts import Prompt
from ..runtime.process import Context
from .media import REF_BYTES, MediaGate, Record, taken_out
from .requests.lengths import check_length, post_measured

ROOM = 512  # bytes of a message beside its numbers
TOLD = 1024  # bytes that a media actor tells of a picture; of those that take more it knows whether they fit


class Renderers:
    """All renderers, and how many sequences of this frontend wait for a prompt from each."""

    def __init__(self, context: Context) -> None:
        self._context = context
        renderers = context.system.of_kind("renderer")
        self._names = [  # by model
            [actor.name for actor in renderers if actor.model == served.index] for served in context.system.models
        ]
        self._sequences: Counter[str] = Counter()
        self.media = MediaGate(context) if context.system.files.media is not None else None

    @property
    def in_flight(self) -> int:
        """Sequences whose prompt is being rendered, or waits for it."""
        return self._sequences.total()

    def least_loaded(self, model: int) -> str:
        """The name of the model's with the fewest sequences."""
        return min(self._names[model], key=self._sequences.__getitem__)

    def render(self, renderer: str, message: Render) -> None:
        """Post it, and count its sequences until each `leaves`."""
        self._context.post_alone(renderer, message)
        self._sequences[renderer] += len(message.refs)

    def reserve(
        self, model: int, prompts: Sequence[Prompt], renderings: Sequence[Mapping[str, Any]], width: int
    ) -> list[Record | None]:
        """Room for the pictures of each prompt that has some, and of which so many answers are made; all, or ApiError:
        413 where one is longer than renderers are told, or all than there ever is room, 503 where there is none now.
        """
        records: list[Record | None] = []
        taken = 0  # of room for pictures
        try:
            for prompt, rendering in zip(prompts, renderings, strict=True):
                plain, sources = taken_out(prompt)
                message = Render([], plain, **rendering)
                check_length(self._context, self._names[model][0], message, REF_BYTES * width + TOLD * len(sources))
                if self.media is not None and sources:
                    record = self.media.reserve(message, sources, width, taken)
                    taken += record.taken
                    records.append(record)
                else:
                    records.append(None)
        except ApiError:
            self.give_back(records)
            raise
        return records

    def give_back(self, records: Sequence[Record | None]) -> None:
        """Of these prompts nobody was told."""
        for record in records:
            if self.media is not None and record is not None:
                self.media.give_back(record)

    def render_later(self, renderer: str, record: Record, refs: list[int]) -> None:
        """The same, by way of a media actor."""
        assert self.media is not None
        self.media.render(renderer, record, refs)
        self._sequences[renderer] += len(refs)

    def leaves(self, renderer: str, ref: int) -> None:
        """One sequence was rendered there, or never will be."""
        self._sequences[renderer] -= 1
        if self.media is not None:
            self.media.done(ref)

    def ask(self, message: Message, model: int = 0) -> None:
        """Post what needs no slot, to the model's with least to do."""
        renderer = self.least_loaded(model)
        if self.media is not None and isinstance(message, Tokenize):
            plain, sources = taken_out(message.prompt)
            if sources:
                message = msgspec.structs.replace(message, prompt=plain)
                check_length(self._context, renderer, message, TOLD * len(sources))
                self.media.ask(renderer, message, sources, model)
                return
        if isinstance(message, PostProcess):
            size = len(message.data) + sum(len(one.numbers) + ROOM for one in message.pooled)
            most = self._context.outboxes[renderer].max_message - ROOM
            if size > most:
                text = f"data: its prompts have {size} bytes of vectors; at most {most} reach the plugin."
                raise ApiError(413, text, "data")
            self._context.post_alone(renderer, message)
        else:
            post_measured(self._context, renderer, message)

    def answered(self, call: int) -> None:
        """Nobody waits for what was asked with this number."""
        if self.media is not None:
            self.media.done(call)
