"""One sequence's way from tokens to text: decoding, stop strings, the end. Pure: it knows no table and no message.

What comes out depends on the tokens alone, not on how many come at a time; so a successor that replays the log from its
start gives the same text at the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from ..messages import Generation
from .incremental import TextDecoder
from .stop_strings import StopStrings


@dataclass
class TextStream:
    """State of one sequence. `tokens` were taken from its log, `offset` characters were given out by `take`."""

    params: Generation
    decoder: TextDecoder
    stops: StopStrings | None
    end_tokens: Collection[int]
    tokens: int = 0
    offset: int = 0
    found: str | None = None  # the stop string that ended the text
    ended: bool = False  # an end token was met
    pending: str = ""  # decoded and not taken yet

    @classmethod
    def open(
        cls, params: Generation, make_decoder: Callable[[bool], TextDecoder], end_tokens: Collection[int]
    ) -> TextStream:
        """A sequence at its beginning."""
        stops = StopStrings(params.stop, params.include_stop) if params.stop else None
        own = {*params.stop_token_ids, *(() if params.ignore_eos else end_tokens)}
        return cls(params, make_decoder(params.skip_special_tokens), stops, own)

    def push(self, ids: list[int]) -> None:
        """The next tokens of the log. What follows an end or a stop string is not text."""
        if self.found is not None or self.ended:
            return
        at = next((index for index, token in enumerate(ids) if token in self.end_tokens), None)
        if at is not None:
            self.ended = True
            ids = ids[: at + 1]
        if self.stops is None:
            self.tokens += len(ids)
            self.pending += self.decoder.push(ids if at is None or self.params.include_stop else ids[:at])
            return
        for index, token in enumerate(ids):
            self.tokens += 1
            if (index != at or self.params.include_stop) and self._meets_stop(self.stops, token):
                return

    def _meets_stop(self, stops: StopStrings, token: int) -> bool:
        """Decode one token; was a stop string completed?"""
        self._watch(stops, self.decoder.push([token]))
        return self.found is not None

    def _watch(self, stops: StopStrings, text: str) -> None:
        """A stop string counts if it is completed after the first min_tokens tokens."""
        text, self.found = stops.push(text, self.tokens > self.params.sampling.min_tokens)
        self.pending += text

    def finish(self) -> None:
        """No more tokens come: give out what was held back, which may complete a stop string."""
        if self.found is not None:
            return
        rest = self.decoder.flush()
        if self.stops is None:
            self.pending += rest
            return
        self._watch(self.stops, rest)
        if self.found is None:
            self.pending += self.stops.flush()

    def take(self) -> tuple[int, str]:
        """(offset, text) that was not given out yet."""
        offset, text = self.offset, self.pending
        self.offset += len(text)
        self.pending = ""
        return offset, text
