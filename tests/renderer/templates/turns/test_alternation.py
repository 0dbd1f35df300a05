"""Turns that alternate, for templates that want them so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.renderer.templates.chat_template import TemplateProblem
from actorserve.actors.renderer.templates.turns.alternation import alternating

from ...made import make
from ..conversations import USER, call, calls, parts, result
from .test_later_system import LENIENT, STRICT, Turns, turns


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([("user", "a"), ("user", "b"), ("user", "")], [("user", "a\n\nb")]),
        ([("user", "a"), ("user", parts("b"))], [("user", parts("a", "b"))]),
        ([("user", "a"), ("assistant", "b"), ("assistant", "c")], [("user", "a"), ("assistant", "b\n\nc")]),
        ([("tool", "a"), ("user", "b"), ("user", "c")], [("tool", "a\n\nb\n\nc")]),
        ([("tool", "a"), ("tool", "b")], None),
        ([("tool", "a"), ("user", [{"type": "image"}])], None),
        ([("system", "a"), ("user", "b")], None),
    ],
)
def test_who_goes_on(given: Turns, told: Turns | None) -> None:
    messages = turns(*given)
    assert alternating(messages) == (None if told is None else turns(*told))
    assert messages == turns(*given), "the conversation itself stays as it is"


def test_calls_stay_calls() -> None:
    said: dict[str, Any] = {"role": "assistant", "content": "a"}
    assert alternating([said, calls(call(), content="b")]) == [calls(call(), content="a\n\nb")]
    assert alternating([calls(call(), content="a"), said]) is None


@pytest.mark.parametrize(
    ("first", "second", "thought"),
    [
        ({"reasoning_content": "a"}, {"reasoning": "b"}, {"reasoning_content": "a\n\nb"}),
        ({"thinking": "a"}, {"reasoning_content": "b"}, {"reasoning_content": "a\n\nb"}),
        ({}, {"reasoning": "b"}, {"reasoning_content": "b"}),
        ({"reasoning": "a"}, {"reasoning_content": None}, {"reasoning": "a"}),
        ({}, {}, {}),
    ],
)
def test_what_was_thought_is_joined_too(first: Any, second: Any, thought: Any) -> None:
    one, other = turns(("assistant", "c"), ("assistant", "d"))
    assert alternating([one | first, other | second]) == [{"role": "assistant", "content": "c\n\nd", **thought}]


def test_templates_that_want_them(tmp_path: Path) -> None:
    given = turns(("user", "a"), ("user", "b"), ("assistant", "c"), ("user", "d"))
    assert make(STRICT, tmp_path).render(given) == "user:a\n\nb;assistant:c;user:d;"
    assert make(LENIENT, tmp_path).render(given) == "user:a;user:b;assistant:c;user:d;"
    strict = "{% for m in messages[1:] if m.role == 'user' %}{{ raise_exception('No.') }}{% endfor %}"
    behind = [USER, calls(call(), content=""), result("4"), {"role": "user", "content": "Go on."}]
    assert make(strict + LENIENT, tmp_path).render(behind).endswith("tool:4\n\nGo on.;")
    with pytest.raises(TemplateProblem, match=r"^No\.$"):
        make(strict, tmp_path).render([USER, *turns(("assistant", "a"), ("user", "b"))])
