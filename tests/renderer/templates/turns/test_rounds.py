"""Calls and results in the order, and in the messages, that templates take."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.renderer.templates.turns.rounds import answered_in_order, one_by_one

from ..conversations import USER, call, calls, parts, result

SAID = calls(call(number=1), call(number=2), content="I look.")
PICTURE = [{"type": "image"}]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([result("b", 2), result("a", 1)], [result("a", 1), result("b", 2)]),
        (
            [result(parts("b"), 2), result("c", 1), result("a", 1)],
            [result("c", 1), result("a", 1), result(parts("b"), 2)],
        ),
        ([result("b", 2)], None),
        ([result("b", 2), result("a", 7)], None),
        ([result("b", 2), {"role": "tool", "content": "a"}], None),
        ([result(PICTURE, 2), result("a", 1)], None),
    ],
)
def test_results_stand_in_the_order_of_their_calls(given: Any, told: Any) -> None:
    messages = [USER, SAID, *given, USER, SAID]
    assert answered_in_order(messages) == (messages if told is None else [USER, SAID, *told, USER, SAID])


NAMELESS = [{"role": "tool", "content": "b"}, {"role": "tool", "content": "a"}]
UNNAMED = calls(*({"type": "function", "function": one["function"]} for one in SAID["tool_calls"]))


@pytest.mark.parametrize(
    ("said", "results"),
    [
        (UNNAMED, NAMELESS),
        (UNNAMED, [result("b", 2), *NAMELESS]),
        (calls(call(number=2), UNNAMED["tool_calls"][0]), [result("b", 2), *NAMELESS]),
        (calls(call(number=2), call(number=2)), [result("b", 2), result("a", 2)]),
        (calls(*({**call(), "id": at} for at in (1, [2]))), [{**one, "tool_call_id": [2]} for one in NAMELESS]),
    ],
)
def test_results_of_calls_without_names_stay_where_they_are(said: Any, results: Any) -> None:
    assert answered_in_order([said, *results]) == [said, *results]


def test_calls_without_names_have_the_results_in_turn() -> None:
    first, second = UNNAMED["tool_calls"]
    empty = {"role": "assistant", "content": ""}
    apart = one_by_one([UNNAMED, *NAMELESS])
    assert apart == [calls(first), NAMELESS[0], {**empty, "tool_calls": [second]}, NAMELESS[1]]
    named = call(number=2)
    apart = one_by_one([calls(first, named), NAMELESS[0], result("c", 2)])
    assert apart == [calls(first), NAMELESS[0], {**empty, "tool_calls": [named]}, result("c", 2)]


def test_pictures_stay_in_their_order() -> None:
    """They were taken out of the conversation by it."""
    messages = [USER, SAID, result(PICTURE, 2), result(PICTURE, 1)]
    assert one_by_one(messages) == messages
    apart = one_by_one([USER, SAID, result(PICTURE, 1), result(PICTURE, 2)])
    assert [len(message.get("tool_calls", ())) for message in apart] == [0, 1, 0, 1, 0]


def test_other_messages_are_as_they_were() -> None:
    messages = [USER, calls(call(), content=""), result("a"), USER]
    assert answered_in_order(messages) == one_by_one(messages) == messages
