"""Words with their times, of the tokens of a window: tokens that begin with a space begin a word, and marks of
punctuation go with their neighbours. Where a language writes no spaces, every whole character is a word.
"""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from dataclasses import dataclass
from string import punctuation
from typing import Any

from actorserve.actors.model.encoder_decoder.spec import SpeechSpec
from actorserve.actors.protocol.messages import TokenLogprobs

DECODER = codecs.getincrementaldecoder("utf-8")
SPACELESS = frozenset(("zh", "ja", "th", "lo", "my", "yue"))
BEFORE, BEHIND = "\"'“¡¿([{-", "\"'.。,，!！?？:：”)]}、"  # go with the word that follows, and with the one before


@dataclass
class SpokenWord:
    """In seconds of the window."""

    text: str
    start: float
    end: float

    def joined(self, other: SpokenWord) -> SpokenWord:
        """With the one that follows."""
        return SpokenWord(self.text + other.text, self.start, other.end)


def words_of(
    tokens: Sequence[TokenLogprobs], ends: Sequence[float], spec: SpeechSpec, language: str
) -> list[SpokenWord]:
    """`ends`: where each token ends, of the last ones of these tokens."""
    found: list[SpokenWord] = []
    part: list[SpokenWord] = []
    for word in _parts(tokens[len(tokens) - len(ends) :], ends, spec):
        if word is None:  # a timestamp: what is before it is a text of its own
            found += _merged(part, language)
            part = []
        else:
            part.append(word)
    return [word for word in found + _merged(part, language) if word.text.strip()]


def _parts(tokens: Sequence[TokenLogprobs], ends: Sequence[float], spec: SpeechSpec) -> list[SpokenWord | None]:
    """Whole characters; None for a timestamp. What is no character is told as such, where nothing can complete it."""
    found: list[SpokenWord | None] = []
    reader = DECODER("replace")
    begun, before, held = 0.0, 0.0, False
    for token, end in zip(tokens, ends, strict=True):
        special = token.id >= spec.end
        begun = begun if held else before
        text = reader.decode(b"" if special else token.text, final=special)
        if text:
            found.append(SpokenWord(text, begun, before if special else end))
        held = not special and (bool(reader.getstate()[0]) or not text)
        if token.id > spec.no_timestamps:
            found.append(None)
        before = end
    return found


def _merged(parts: Sequence[SpokenWord], language: str) -> list[SpokenWord]:
    if language in SPACELESS:
        return _with_punctuation(list(parts))
    words: list[SpokenWord] = []
    for part in parts:
        plain = part.text.strip()
        if not words or part.text.startswith(" ") or (plain in punctuation):
            words.append(part)
        else:
            words[-1] = words[-1].joined(part)
    return _with_punctuation(words)


def _with_punctuation(words: list[SpokenWord]) -> list[SpokenWord]:
    behind: list[SpokenWord] = []
    for word in reversed(words):  # marks that open something go with what follows
        if behind and word.text.startswith(" ") and word.text.strip() in BEFORE:
            behind[-1] = word.joined(behind[-1])
        else:
            behind.append(word)
    found: list[SpokenWord] = []
    for word in reversed(behind):
        if found and not found[-1].text.endswith(" ") and word.text in BEHIND:
            found[-1] = found[-1].joined(word)
        else:
            found.append(word)
    return found


def told(words: Sequence[SpokenWord], begin: float, limit: float) -> list[dict[str, Any]]:
    """As an answer has them. `begin`: of the window; `limit`: its end."""
    return [
        {
            "word": word.text.strip(),
            "start": round(min(begin + word.start, limit), 2),
            "end": round(min(begin + word.end, limit), 2),
        }
        for word in words
    ]
