"""What a choice makes of deltas: what comes twice is dropped, what is missing is noticed, and how far its client is."""

from __future__ import annotations

import pytest

from actorserve.actors.protocol.messages import Delta, TokenLogprobs
from actorserve.http.generation.choice import Choice, make_state
from actorserve.http.output.events import Content
from actorserve.http.output.parsers.registry import make_parser


def text_of(choice: Choice) -> str:
    return "".join(piece.text for piece in choice.take().pieces if isinstance(piece, Content))


def told(*tokens: int) -> list[TokenLogprobs]:
    return [TokenLogprobs(b"x", token, -1.0, 1, []) for token in tokens]


@pytest.mark.parametrize("again", [Delta(1, 0, "Hel", 1), Delta(1, 0, "Hello", 2), Delta(1, 2, "llo", 2)])
def test_text_that_comes_again(again: Delta) -> None:
    choice = Choice(0)
    assert choice.add(Delta(1, 0, "Hel", 1)) and choice.add(again) and choice.add(Delta(1, 3, "lo", 2))
    assert text_of(choice) == "Hello" and (choice.characters, choice.tokens) == (5, 2)


def test_counts_never_fall() -> None:
    choice = Choice(0)
    choice.add(Delta(1, 0, "Hello", 4, thought=3))
    choice.add(Delta(1, 0, "Hel", 2, thought=1))
    assert (choice.tokens, choice.thought) == (4, 3)


def test_a_gap() -> None:
    choice = Choice(0)
    assert choice.add(Delta(1, 0, "Hel", 1)) and not choice.add(Delta(1, 4, "o", 3))
    assert (choice.characters, choice.tokens) == (3, 1) and text_of(choice) == "Hel"


def test_a_gap_among_those_that_are_told() -> None:
    choice = Choice(0)
    assert choice.add(Delta(1, 0, "a", 1, logprobs=told(7))) and not choice.add(Delta(1, 1, "", 3, logprobs=told(9)))
    assert choice.add(Delta(1, 1, "b", 3, logprobs=told(8, 9))) and [one.id for one in choice.take().logprobs] == [
        7,
        8,
        9,
    ]


def test_the_state_is_what_was_taken_or_what_was_skipped() -> None:
    choice = Choice(0)
    choice.add(Delta(1, 0, "Hello", 2))
    assert choice.state == make_state(0, 2)
    assert choice.take_plain() == "Hello" and choice.state == make_state(5, 2)
    for skipped in ((9, 1), (9, 0)):
        choice.skip(*skipped)
        assert choice.state == make_state(9, 2)
    choice.skip(3, 4)
    assert choice.state == make_state(5, 4)


@pytest.mark.parametrize(
    ("stop", "finish", "reason"),
    [(None, "stop", "tool_calls"), (128008, "stop", "tool_calls"), ("}", "stop", "stop"), (None, "length", "length")],
)
def test_calls_end_with_a_token_of_the_clients_too(stop: str | int | None, finish: str, reason: str) -> None:
    parser = make_parser(reasoning=None, tools="hermes", schemas={})
    choice = Choice(0, parser=parser, finish_reason=finish, stop_reason=stop)
    text = '<tool_call>{"name": "now", "arguments": {}}</tool_call>'
    choice.add(Delta(1, 0, text, 9))
    assert choice.take().ended and choice.finish_reason == reason
