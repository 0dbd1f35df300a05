"""From tokens to text with stops: what comes out does not depend on how the tokens come in."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.detokenizer.decoder import decoder_factory
from actorserve.actors.detokenizer.stop_strings import StopStrings
from actorserve.actors.detokenizer.stream import TextStream
from actorserve.actors.protocol.request import Generation, Sampling
from tests.support.models.tokenizers_made import CORPUS, byte_level, token_id

END = token_id(byte_level(), "</s>")


def reference(text: str, stops: list[str], include: bool) -> tuple[str, str | None]:
    """The first match to be complete, looked for in ever longer beginnings of the text."""
    for end in range(len(text) + 1):
        found = [(end - len(stop), stop) for stop in stops if text[:end].endswith(stop)]
        if found:
            start, stop = min(found)
            return text[: end if include else start], stop
    return text, None


@pytest.mark.parametrize("include", [True, False])
def test_stop_strings_are_found_however_the_text_is_cut(include: bool) -> None:
    for seed in range(300):
        check_stops(seed, include)


def check_stops(seed: int, include: bool) -> None:
    rng = random.Random(seed)
    text = "".join(rng.choice("ab c") for _ in range(rng.randrange(40)))
    stops = ["".join(rng.choice("ab c") for _ in range(rng.randrange(1, 6))) for _ in range(rng.randrange(1, 4))]
    watch = StopStrings(stops, include)
    out, found, at = "", None, 0
    while at < len(text) and found is None:
        size = rng.randrange(1, 5)
        piece, found = watch.push(text[at : at + size])
        out += piece
        at += size
    if found is None:
        out += watch.flush()
    assert (out, found) == reference(text, stops, include), f"seed {seed}"


def test_no_more_is_held_back_than_may_become_a_stop() -> None:
    watch = StopStrings(["STOP", "\n\n"], False)
    assert watch.push("abcST") == ("abc", None)
    assert watch.push("x") == ("STx", None)
    assert watch.push("\n") == ("", None)
    assert watch.push("a") == ("\na", None)
    assert watch.push("SSTOP!") == ("S", "STOP")


def make(**fields: object) -> TextStream:
    generation = Generation(**{"sampling": Sampling(0), **fields})  # type: ignore[arg-type]
    return TextStream.open(generation, decoder_factory(byte_level()), [END])


def run(stream: TextStream, ids: list[int], rng: random.Random) -> tuple[str, str | None, int]:
    at, text = 0, ""
    while at < len(ids):
        size = rng.randrange(1, 6)
        stream.push(ids[at : at + size])
        offset, new = stream.take()
        assert offset == len(text)
        text += new
        at += size
    stream.finish()
    return text + stream.take()[1], stream.found, stream.tokens


@pytest.mark.parametrize("seed", range(60))
def test_a_replay_in_other_pieces_gives_the_same(seed: int) -> None:
    rng = random.Random(seed)
    text = rng.choice(CORPUS)
    ids = byte_level().encode(text, add_special_tokens=False).ids
    stops = [text[at : at + rng.randrange(1, 6)] for at in rng.sample(range(len(text)), 2)] if seed % 3 else []
    fields = {"stop": [stop for stop in stops if stop], "include_stop_str_in_output": seed % 2 == 0}
    once = run(make(**fields), ids, rng)
    assert once == run(make(**fields), ids, rng)
    assert once[:2] == reference(text, fields["stop"], seed % 2 == 0)  # type: ignore[arg-type]


def test_what_ends_a_text_is_not_text() -> None:
    ids = byte_level().encode("hello", add_special_tokens=False).ids
    rng = random.Random(0)
    assert run(make(skip_special_tokens=False), [*ids, END], rng)[0] == "hello"
    assert run(make(skip_special_tokens=False, include_stop_str_in_output=True), [*ids, END], rng)[0] == "hello</s>"
    assert run(make(skip_special_tokens=False, ignore_eos=True), [*ids, END, *ids], rng)[0] == "hello</s>hello"
    assert run(make(stop_token_ids=[ids[-1]]), ids, rng)[0] == byte_level().decode(ids[:-1])


def test_a_stop_string_before_min_tokens_does_not_count() -> None:
    tokens = byte_level().encode("the the the the", add_special_tokens=False).ids
    early = make(stop=["the"], sampling=Sampling(0, min_tokens=2))
    text, found, count = run(early, tokens, random.Random(0))
    assert found == "the" and count == 3 and text == byte_level().decode(tokens[:3])[: -len("the")]


def test_after_the_end_nothing_comes() -> None:
    stream = make(stop=["b"])
    stream.push(byte_level().encode("abc", add_special_tokens=False).ids)
    assert stream.take() == (0, "a") and stream.found == "b"
    stream.push(byte_level().encode("more", add_special_tokens=False).ids)
    stream.finish()
    assert stream.take() == (1, "")
