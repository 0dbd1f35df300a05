"""What was heard, made of the windows' texts: special tokens stand in them as marks, timestamps among these."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from actorserve.actors.model.encoder_decoder.spec import SpeechSpec
from actorserve.actors.protocol.messages import TokenLogprobs

MARK = re.compile(r"<\|[^|<>]*\|>")


def plain(text: str) -> str:
    """Without marks."""
    return MARK.sub("", text)


def language_of(text: str, spec: SpeechSpec) -> str | None:
    """The language that a model has written in front, if it had to say which it hears."""
    first = MARK.match(text)
    code = first[0].strip("<|>") if first else ""
    return code if code in spec.languages else None


def first_language(texts: Iterable[str], spec: SpeechSpec) -> str | None:
    """Of the first of these windows in which one is heard: where nobody speaks, none is."""
    return next(filter(None, (language_of(text, spec) for text in texts)), None)


@dataclass
class Spoken:
    """What was said between two timestamps, in seconds of the whole sound."""

    start: float
    end: float
    text: str
    window: int
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @property
    def avg_logprob(self) -> float:
        """Of its tokens."""
        return sum(self.logprobs) / len(self.logprobs) if self.logprobs else 0.0

    @property
    def compression_ratio(self) -> float:
        """How much shorter zlib makes the text: high where the model repeats itself."""
        data = self.text.encode()
        return len(data) / len(zlib.compress(data)) if data else 0.0


def spoken(window: int, place: tuple[float, float], tokens: Sequence[TokenLogprobs], spec: SpeechSpec) -> list[Spoken]:
    """The segments of one window, of the tokens that were drawn for it.

    A segment goes from a timestamp to the next; one that does not end, to the window's end. A window without any is one
    segment.
    """
    begin, end = place
    times = spec.no_timestamps + 1
    found: list[Spoken] = []
    start, held = 0.0, list[TokenLogprobs]()

    def close(at: float) -> None:
        text = plain(b"".join(token.text for token in held if token.id < spec.end).decode(errors="replace"))
        if text.strip():
            until = min(max(begin + at, begin + start), end)
            own = [token for token in held if token.id < spec.end]
            ids, chances = [token.id for token in own], [token.logprob for token in own]
            found.append(Spoken(min(begin + start, end), until, text, window, ids, chances))

    for token in tokens:
        if token.id < times:
            held.append(token)
            continue
        at = (token.id - times) * spec.step
        close(at)
        start, held = at, []
    close(end - begin)
    return found
