"""A stream's stops against a reference that sees all tokens and the whole text at once."""

from __future__ import annotations

import random
from dataclasses import dataclass

import pytest

from actorserve.actors.detokenizer.stop_strings import StopStrings
from actorserve.actors.detokenizer.stream import TextStream
from actorserve.actors.protocol.request import Generation, Sampling

WORDS = ["a", "b", "ab", "ba", "", "c", "aab", " ", "é", "\n\n"]
END = 5  # its text is "c"
OWN = 7  # its text is " "


class WordDecoder:
    """Words by number; 2 is held back until the next one comes, like half a character."""

    def __init__(self) -> None:
        self.held = ""

    def push(self, ids: list[int]) -> str:
        out = ""
        for token in ids:
            text, self.held = self.held + WORDS[token], ""
            if token == 2:
                self.held, text = text, ""
            out += text
        return out

    def flush(self) -> str:
        held, self.held = self.held, ""
        return held


@dataclass
class Whole:
    """What a stream ought to give."""

    text: str
    found: str | None
    tokens: int


def reference(ids: list[int], params: Generation) -> Whole:
    """Look at ever longer beginnings of the log; the first one whose text ends the stream counts."""
    ends = {*params.stop_token_ids, *(() if params.ignore_eos else (END,))}
    least, text, decoder = params.sampling.min_tokens, "", WordDecoder()
    for count, token in enumerate(ids, 1):
        shown = token not in ends or params.include_stop_str_in_output
        new = decoder.push([token]) if shown else ""
        if (whole := cut(text, new, params)) and shown and count > least:
            return Whole(*whole, count)
        text += new
        if token in ends:
            break
    new = decoder.flush()
    if (whole := cut(text, new, params)) and count > least:
        return Whole(*whole, count)
    return Whole(text + new, None, count)


def cut(text: str, new: str, params: Generation) -> tuple[str, str] | None:
    """The text up to the first match that is completed by `new`."""
    for end in range(len(text) + 1, len(text) + len(new) + 1):
        matches = [(end - len(stop), stop) for stop in params.stop if (text + new)[:end].endswith(stop)]
        if matches:
            start, stop = min(matches)
            return (text + new)[: end if params.include_stop_str_in_output else start], stop
    return None


def random_params(rng: random.Random) -> Generation:
    stops = ["".join(rng.choice("ab cé\n") for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(4))]
    return Generation(
        Sampling(0, min_tokens=rng.choice([0, 0, 1, 3, 8])),
        ignore_eos=rng.random() < 0.5,
        stop_token_ids=[OWN] if rng.random() < 0.3 else [],
        stop=stops,
        include_stop_str_in_output=rng.random() < 0.5,
    )


@pytest.mark.parametrize("seed", range(20))
def test_streams_are_as_the_reference(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(100):
        params = random_params(rng)
        ids = [rng.choice([0, 1, 2, 3, 4, 6, 8, 9, 0, 1, 2, 3, END, OWN]) for _ in range(rng.randrange(1, 25))]
        stream = TextStream.open(params, lambda skip: WordDecoder(), [END])
        text, at = "", 0
        while at < len(ids):
            size = rng.randrange(1, 6)
            stream.push(ids[at : at + size])
            at += size
            if rng.random() < 0.7:
                offset, new = stream.take()
                assert offset == len(text)
                text += new
        stream.finish()
        offset, new = stream.take()
        assert offset == len(text) and stream.take() == (len(text + new), "")
        assert Whole(text + new, stream.found, stream.tokens) == reference(ids, params), (ids, params)


@pytest.mark.parametrize("seed", range(20))
def test_what_is_held_back_is_the_longest_beginning_of_a_stop(seed: int) -> None:
    rng = random.Random(seed)
    for _ in range(50):
        stops = ["".join(rng.choice("ab") for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4))]
        watch, out, text = StopStrings(stops, False), "", ""
        for _ in range(10):
            piece = "".join(rng.choice("abc") for _ in range(rng.randrange(3)))
            text += piece
            counts = rng.random() < 0.5
            new, found = watch.push(piece, counts)
            out += new
            if found:
                break
            tails = [text[at:] for at in range(len(text) + 1)]
            held = next(tail for tail in tails if any(s.startswith(tail) and s != tail for s in stops))
            assert text == out + held


def test_a_stop_that_begins_before_min_tokens_and_ends_after_them_counts() -> None:
    stream = TextStream.open(Generation(Sampling(0, min_tokens=2), stop=["abab"]), lambda skip: WordDecoder(), [END])
    stream.push([0, 1, 0, 1])
    assert (stream.found, stream.tokens, stream.take()) == ("abab", 4, (0, ""))
