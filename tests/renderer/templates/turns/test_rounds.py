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


def test_pictures_stay_in_their_order() -> None:
    """They were taken out of the conversation by it."""
    messages = [USER, SAID, result(PICTURE, 2), result(PICTURE, 1)]
    assert one_by_one(messages) == messages
    apart = one_by_one([USER, SAID, result(PICTURE, 1), result(PICTURE, 2)])
    assert [len(message.get("tool_calls", ())) for message in apart] == [0, 1, 0, 1, 0]


def test_other_messages_are_as_they_were() -> None:
    messages = [USER, calls(call(), content=""), result("a"), USER]
    assert answered_in_order(messages) == one_by_one(messages) == messages
