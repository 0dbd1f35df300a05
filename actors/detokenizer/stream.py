"""One sequence's way from tokens to text: decoding, stop strings, the end. Pure: it knows no table and no message.

What comes out depends on the tokens alone, not on how many come at a time; so a successor that replays the log from its
start gives the same text at the same offsets.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Set
from dataclasses import dataclass, field

from ..protocol.request import Generation
from .decoder import TextDecoder
from .reasoning import ThinkingGate
from .repetition import Repetition
from .stop_strings import StopStrings

LONGEST = 1 << 16  # characters of one message
PIECE = 128  # tokens that are looked at at a time


@dataclass
class TextStream:
    """State of one sequence. `tokens` were taken from its log, `offset` characters were given out by `take`."""

    params: Generation
    decoder: TextDecoder
    stops: StopStrings | None
    end_tokens: Set[int]
    gate: ThinkingGate | None = None
    tokens: int = 0
    thought: int = 0  # of them, tokens of thinking
    taken: int = 0  # of them, those that were taken
    offset: int = 0
    found: str | None = None  # the stop string that ended the text
    ended: bool = False  # an end token was met
    repetition: Repetition | None = None
    repeated: bool = False  # a pattern came too often
    pending: str = ""  # decoded and not taken yet
    prompt_logprobs_sent: bool = True  # nothing of the prompt's logprobs is to be sent
    with_logprobs: bool = field(init=False)  # its tokens go to the client with their logprobs

    def __post_init__(self) -> None:
        self.with_logprobs = self.params.sampling.logprobs >= 0

    @classmethod
    def open(
        cls,
        params: Generation,
        make_decoder: Callable[[bool], TextDecoder],
        end_tokens: Collection[int],
        opened: bool = False,
    ) -> TextStream:
        """A sequence at its beginning, which may lie inside its thinking."""
        stops = StopStrings(params.stop, params.include_stop_str_in_output) if params.stop else None
        own = {*params.stop_token_ids, *(() if params.ignore_eos else end_tokens)}
        gate = ThinkingGate(params.think, opened) if params.think is not None else None
        repetition = None if params.repeats is None else Repetition(params.repeats)
        return cls(params, make_decoder(params.skip_special_tokens), stops, own, gate, repetition=repetition)

    @property
    def is_over(self) -> bool:
        """Nothing that comes is text."""
        return self.is_cut or self.ended

    @property
    def is_cut(self) -> bool:
        """It ends where the log may go on."""
        return self.found is not None or self.repeated

    @property
    def has_news(self) -> bool:
        """There is something that the client is to have now, before the end."""
        behind = self.tokens - self.taken
        if len(self.pending) > LONGEST or (self.with_logprobs and behind >= PIECE):
            return True  # one message must not grow beyond its lane (that of logprobs: logprobs.py)
        news = behind > 0 if self.with_logprobs else self.params.stream and bool(self.pending)
        return news and (behind >= self.params.interval or not self.taken)

    def push(self, ids: list[int]) -> None:
        """The next tokens of the log. What follows an end or a stop string is not text."""
        if self.is_over:
            return
        at = None
        if not self.end_tokens.isdisjoint(ids):
            at = next(index for index, token in enumerate(ids) if token in self.end_tokens)
            self.ended = True
            ids = ids[: at + 1]
        if self.stops is None and self.repetition is None and (self.gate is None or self.gate.is_over):
            self.tokens += len(ids)
            self.pending += self.decoder.push(ids if at is None or self.params.include_stop_str_in_output else ids[:at])
            return
        for index, token in enumerate(ids):
            self.tokens += 1
            if index != at or self.params.include_stop_str_in_output:
                self._add(self.decoder.push([token]))
                if self.found is not None:
                    return
            if self.repetition is not None and self.repetition.push(token) and index != at:
                self.repeated = self.tokens > self.params.sampling.min_tokens
                if self.repeated:
                    return

    def _add(self, text: str) -> None:
        """The text of one more token; was a stop string completed in the answer?"""
        if self.gate is not None and not self.gate.is_over:
            thinking, text = self.gate.push(text)
            self.pending += thinking
            if self.gate.inside or thinking:
                self.thought = self.tokens
        self._watch(text)

    def _watch(self, text: str) -> None:
        """A stop string counts if it is completed after the first min_tokens tokens."""
        if self.stops is not None:
            text, self.found = self.stops.push(text, self.tokens > self.params.sampling.min_tokens)
        self.pending += text

    def finish(self) -> None:
        """No more tokens come: give out what was held back, which may complete a stop string."""
        if self.found is not None:
            return
        self._add(self.decoder.flush())
        if self.gate is not None:
            self._watch(self.gate.flush())
        if self.found is None and self.stops is not None:
            self.pending += self.stops.flush()

    def take(self) -> tuple[int, str]:
        """(offset, text) that was not given out yet."""
        offset, text = self.offset, self.pending
        self.offset += len(text)
        self.pending = ""
        self.taken = self.tokens
        return offset, text
