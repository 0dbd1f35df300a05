"""One answer to one of a request's prompts: what has come of it, and what of that its client has."""

from __future__ import annotations

from dataclasses import dataclass, field

from actorserve.actors.protocol.messages import Delta, TokenLogprobs

from ..output.events import CallStart, Content, OutputParser, Piece, merged

ENDED = 1 << 63  # in a choice's state: its end was given out
TOKENS = 32  # bits of a state that count characters; those above count tokens
CHARACTERS = (1 << TOKENS) - 1


class PlainText:
    """The parser of answers without any markup."""

    def feed(self, text: str) -> list[Piece]:
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        return []


@dataclass
class ChoiceUpdate:
    """What is new of a choice since the last time."""

    pieces: list[Piece]
    logprobs: list[TokenLogprobs]
    ids: list[int]
    ended: bool
    skipped: list[Piece] = field(default_factory=list)  # what the client had before
    passed: list[TokenLogprobs] = field(default_factory=list)  # the same
    passed_ids: list[int] = field(default_factory=list)  # the same

    def __bool__(self) -> bool:
        return bool(self.pieces or self.logprobs or self.ids or self.ended)


@dataclass
class Choice:
    """Text, tokens and end as they come. `skip_…`: so much of them the client has from an earlier answer."""

    index: int
    ref: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    opened: bool = False  # the answer begins inside the model's thinking
    language: str = ""  # of a sound, in which its prompt has it written down
    characters: int = 0  # received so far
    tokens: int = 0
    thought: int = 0  # of them, tokens of thinking
    logprob_tokens: int = 0  # of them, those that were told with logprobs
    text: list[str] = field(default_factory=list)  # received and not taken
    logprobs: list[TokenLogprobs] = field(default_factory=list)  # the same
    ids: list[int] = field(default_factory=list)  # the same, where they are wanted
    trail: list[int] = field(default_factory=list)  # the same, where the stream says them to whoever goes on with it
    prompt_ids: list[int] = field(default_factory=list)
    prompt_logprobs: dict[int, TokenLogprobs] = field(default_factory=dict)  # by position
    parser: OutputParser = field(default_factory=PlainText)
    calls: int = 0  # tool calls in what was taken
    finish_reason: str | None = None
    stop_reason: str | int | None = None
    pooled: tuple[int, int, bytes] | None = None  # of a model that pools: (rows, columns, float32 of all)
    hidden_states: tuple[int, int, bytes] | None = None  # of one that has ended, where they are wanted: the same, of
    # all tokens, or, where the job does not tell all, of the last that was computed for the answer
    limit: int = 0  # the most tokens it may have
    skip_characters: int = 0
    skip_tokens: int = 0
    counts_tokens: bool = True  # its state does; otherwise `skip_tokens` are of something else
    is_resumed: bool = False  # the client has it from an earlier connection, whose trail is nobody's any more
    grain: int = 0  # characters that are told at a time, so that events are numbered alike whenever they are read
    _taken: int = 0  # characters
    _held: str = ""  # too little for a grain
    _told_trail: bool = False
    _finished: bool = False  # the parser was told that the text has ended

    def skip(self, characters: int, tokens: int) -> None:
        """The client has so much already."""
        self.skip_characters, self.skip_tokens = characters, tokens

    def add(self, delta: Delta) -> bool:
        """What is new in a delta; False if something before it is missing."""
        known = self.characters - delta.offset
        first = delta.tokens - len(delta.logprobs)
        if known < 0 or (delta.logprobs and first > self.logprob_tokens):
            return False
        new = delta.text[known:] if known else delta.text
        if new:
            self.text.append(new)
            self.characters += len(new)
        if delta.logprobs:
            self.logprobs += delta.logprobs[self.logprob_tokens - first :]
            self.logprob_tokens = max(self.logprob_tokens, delta.tokens)
        if delta.tokens > self.tokens:
            self.tokens = delta.tokens
        if delta.thought > self.thought:
            self.thought = delta.thought
        return True

    def take_plain(self) -> str | None:
        """The new text, where that is all there is to an answer that goes on: the way of most deltas."""
        more = self.logprobs or self.ids or self.finish_reason or self.skip_characters or self.grain
        if more or type(self.parser) is not PlainText:
            return None
        text = self.text[0] if len(self.text) == 1 else "".join(self.text)
        self.text.clear()
        self._taken += len(text)
        return text

    def take(self) -> ChoiceUpdate:
        """What is new since the last time and behind what is skipped."""
        text, told, ids = "".join(self.text), self.logprobs, self.ids
        self.text, self.logprobs, self.ids = [], [], []
        passed = min(len(text), max(0, self.skip_characters - self._taken))
        skipped = self.parser.feed(text[:passed]) if passed else []
        self._count(skipped)
        self._taken += len(text)
        ended = self.finish_reason is not None
        pieces = self._in_grains(text[passed:], ended) if self.grain else self.parser.feed(text[passed:])
        if ended and not self._finished:
            self._finished = True
            pieces += self.parser.finish()
        self._count(pieces)
        if ended and self.calls and self.finish_reason == "stop" and not isinstance(self.stop_reason, str):
            self.finish_reason = "tool_calls"
        had = max(0, self.skip_tokens - (self.logprob_tokens - len(told)))  # of those that are told
        old = max(0, self.skip_tokens - (self.tokens - len(ids)))
        pieces = pieces if len(pieces) < 2 or self.grain else merged(pieces)
        return ChoiceUpdate(pieces, told[had:], ids[old:], ended, skipped, told[:had], ids[:old])

    @property
    def has_come_again(self) -> bool:
        """All that the client has of it."""
        return self.characters >= self.skip_characters and (self.tokens >= self.skip_tokens or not self.counts_tokens)

    def take_trail(self) -> tuple[list[int], bool]:
        """The ids of the tokens that came since the last time, and that the client has not from an earlier answer; or
        all from the first on, where nobody has counted which these are, or nobody knows them.
        """
        ids, self.trail = self.trail, []
        if self.is_resumed or not self.counts_tokens:
            are_all, self._told_trail = not self._told_trail, True
            return ids, are_all
        return ids[max(0, self.skip_tokens - (self.tokens - len(ids))) :], False

    def _in_grains(self, text: str, ended: bool) -> list[Piece]:
        """Pieces of texts of `grain` characters each, whatever came at a time; what is too short waits."""
        text = self._held + text
        whole = len(text) if ended else len(text) // self.grain * self.grain
        self._held = text[whole:]
        return [piece for at in range(0, whole, self.grain) for piece in self.parser.feed(text[at : at + self.grain])]

    def _count(self, pieces: list[Piece]) -> None:
        self.calls += sum(isinstance(piece, CallStart) for piece in pieces)

    @property
    def state(self) -> int:
        """How far the client has it, once what was taken is given out."""
        if self.skip_tokens or self.skip_characters:
            return make_state(max(self._taken, self.skip_characters), max(self.tokens, self.skip_tokens))
        return self.tokens << TOKENS | self._taken


def make_state(characters: int, tokens: int, ended: bool = False) -> int:
    """So much of a choice was given out; and its end?"""
    return tokens << TOKENS | characters | (ENDED if ended else 0)


def read_state(state: int) -> tuple[int, int, bool]:
    """(characters, tokens, was its end given out?)."""
    return state & CHARACTERS, (state & ~ENDED) >> TOKENS, bool(state & ENDED)


def further(one: int, other: int) -> int:
    """The state of a choice of which both were given out."""
    pairs = zip(read_state(one), read_state(other), strict=True)
    characters, tokens, ended = (max(pair) for pair in pairs)
    return make_state(characters, tokens, bool(ended))


def likelihood(choice: Choice) -> float:
    """The mean logprob of the choice's tokens."""
    return sum(one.logprob for one in choice.logprobs) / max(1, len(choice.logprobs))
