"""Thinking and answer told apart, however the text is cut; stop strings and counts follow from it."""

from __future__ import annotations

import itertools

import pytest

from actorserve.actors.detokenizer.decoder import decoder_factory
from actorserve.actors.detokenizer.reasoning import ThinkingGate
from actorserve.actors.detokenizer.stream import TextStream
from actorserve.actors.protocol.request import Generation, Sampling, Think
from tests.support.models.tokenizers_made import byte_level

THINK = Think("<think>", "</think>")
ALWAYS = Think("<think>", "</think>", always=True)
CASES = [  # think, opened, thinking, answer
    (THINK, False, "<think>\nA STOP </thin\n</think>", "\n\nB </think> STOP"),
    (THINK, False, " \n<think></think>", "x"),
    (THINK, False, "", "no thinking <think>at all</think>"),
    (THINK, False, "", "<thin"),
    (THINK, False, "", "  "),
    (THINK, True, "it goes on</think>", "answer"),
    (THINK, True, "it never ends <", ""),
    (ALWAYS, True, "hm</think>", "<think>x</think>"),
    (ALWAYS, True, "<think>hm</think>", "y"),
    (ALWAYS, False, "", "the prompt has closed it"),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_every_cut_gives_the_same(case: tuple[Think, bool, str, str]) -> None:
    think, opened, thinking, answer = case
    text = thinking + answer
    cuts = [[text], list(text), *([text[:at], text[at:]] for at in range(len(text) + 1))]
    for pieces in cuts:
        gate = ThinkingGate(think, opened)
        parts = [gate.push(piece) for piece in pieces]
        assert "".join(part[0] for part in parts) == thinking
        assert "".join(part[1] for part in parts) + gate.flush() == answer


@pytest.mark.parametrize("opened", [False, True])
@pytest.mark.parametrize("sizes", [(1,), (2, 3), (50,)])
def test_stop_strings_and_counts(opened: bool, sizes: tuple[int, ...]) -> None:
    tokenizer = byte_level()
    thinking = ("" if opened else "<think>") + "I STOP here</think>"
    ids = tokenizer.encode(thinking + " and now STOP it", add_special_tokens=False).ids
    params = Generation(Sampling(1), stop=["STOP"], think=THINK)
    stream = TextStream.open(params, decoder_factory(tokenizer), [], opened)
    text, at, size = "", 0, itertools.cycle(sizes)
    while at < len(ids):
        count = next(size)
        stream.push(ids[at : at + count])
        text += stream.take()[1]
        at += count
    stream.finish()
    assert stream.found == "STOP" and text + stream.take()[1] == thinking + " and now "
    alone = tokenizer.encode(thinking, add_special_tokens=False).ids
    assert stream.thought == len(alone)


def test_without_thinking_all_stop_strings_count() -> None:
    tokenizer = byte_level()
    params = Generation(Sampling(1), stop=["STOP"], think=THINK)
    stream = TextStream.open(params, decoder_factory(tokenizer), [])
    stream.push(tokenizer.encode("So STOP it", add_special_tokens=False).ids)
    assert (stream.take()[1], stream.found, stream.thought) == ("So ", "STOP", 0)


def test_what_was_held_back_at_the_beginning_is_the_answer() -> None:
    tokenizer = byte_level()
    for text, stop, shown in (("<thin", [], "<thin"), ("<th", ["<th"], "")):
        stream = TextStream.open(Generation(Sampling(1), stop=stop, think=THINK), decoder_factory(tokenizer), [])
        stream.push(tokenizer.encode(text, add_special_tokens=False).ids)
        assert stream.take()[1] == ""
        stream.finish()
        assert stream.take()[1] == shown and stream.found == (stop[0] if stop else None)
