"""Whatever a template or a message is, the answer is a text or a TemplateProblem that says what is wrong."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from jinja2.exceptions import SecurityError

from actorserve.actors.renderer.templates.chat_template import TemplateProblem
from actorserve.actors.renderer.templates.sandbox import MAX_TEXT, make_environment

from ..made import known, make
from .conversations import USER
from .templates import ALL
from .test_chat_template import by_transformers

GARBAGE: list[Any] = [None, True, 0, -1.5, "", "text", [], {}, [None], [[]], {"a": None}, "\ud800"]
KEYS = ["role", "content", "tool_calls", "function", "arguments", "name", "type", "text", "thinking", "x"]


def anything(rng: random.Random, depth: int = 0) -> Any:
    """JSON without sense, of the words that templates look for."""
    kind = rng.random()
    if depth > 3 or kind < 0.3:
        return rng.choice([*GARBAGE, "user", "assistant", "tool", "system", '{"a": 1}', "[1"])
    if kind < 0.6:
        return [anything(rng, depth + 1) for _ in range(rng.randrange(4))]
    return {rng.choice(KEYS): anything(rng, depth + 1) for _ in range(rng.randrange(5))}


@pytest.mark.parametrize("name", ALL)
def test_no_message_causes_another_exception(name: str) -> None:
    ours, rng = known(name), random.Random(name)
    refused: list[str] = []
    for _ in range(300):
        messages = [anything(rng, 1) for _ in range(rng.randrange(4))]
        variables = {rng.choice(["self", "bos_token", "x", "enable_thinking", "loop"]): anything(rng)}
        flags: dict[str, Any] = {
            "add_generation_prompt": rng.random() < 0.5,
            "continue_final_message": rng.random() < 0.3,
        }
        try:
            assert isinstance(ours.render(messages, anything(rng), anything(rng), variables, **flags), str)
        except TemplateProblem as problem:
            refused.append(str(problem))
    assert refused and all(refused)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{{ 'a'.encode('no such') }}", "unknown encoding"),
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ unknown() }}", "'unknown' is undefined"),
        ("{{ messages[99].role }}", "no element 99"),
        ("{{ messages.nothing.role }}", "nothing"),
        ("{{ messages[0].content.__class__.__mro__ }}", "unsafe"),
        ("{{ dict.__call__.__func__.__globals__ }}", "unsafe|undefined|no attribute"),
        ("{{ namespace.__init__.__globals__ }}", "unsafe|undefined"),
        ("{{ raise_exception.__globals__ }}{{ strftime_now.__globals__.os }}", "unsafe"),
        ("{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}", "unsafe|undefined"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update(role='x') }}", "unsafe"),
        ("{{ namespace(_x=1) }}", "underscore"),
        ("{% set ns = namespace() %}{% set ns._x = 1 %}", "underscore"),
        ("{{ dict.copy() }}", "no attribute 'copy'"),
        ("{% include 'file' %}", "loader"),
        ("{% import 'os' as os %}", "loader"),
        ("{{ messages[0].content * 999999999 }}", "too much"),
        ("{{ 999999999 * messages }}", "too much"),
        ("{{ 9 ** (9 ** 9) }}", "too much"),
        ("{% for i in range(1000000000) %}{% endfor %}", "[Rr]ange"),
        ("{% set x = 'x' * 9999999 %}{{ x }}{{ x }}{{ x }}{{ x }}", "more than"),
        ("{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}", "recursion"),
        ("{{ [self] | tojson }}", "serializable"),
        ("{% for message in messages %}{{ loop(message) }}{% endfor %}", "recursive"),
    ],
)
def test_what_is_refused_says_why(text: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(TemplateProblem, match=words):
        make(text, tmp_path).render([dict(USER)])


@pytest.mark.parametrize(
    "text", ["{{ 'x' * 5 }}{{ 2 ** 10 }}{{ 3 * 4 }}{{ [1] * 2 }}{{ 2.0 * 3 }}{{ 2 ** -1 }}{{ 2 ** 0.5 }}"]
)
def test_small_sums_are_as_ever(text: str, tmp_path: Path) -> None:
    assert make(text, tmp_path).render([USER]) == by_transformers(text, [USER], {})


def test_formats_do_not_reach_python(tmp_path: Path) -> None:
    assert make("{{ '{0.__class__}x'.format(messages) }}", tmp_path).render([USER]) == "x"


def test_the_bound_of_a_product_is_that_of_the_text() -> None:
    environment = make_environment()
    assert len(environment.from_string("{{ x * n }}").render(x="x", n=MAX_TEXT)) == MAX_TEXT
    with pytest.raises(SecurityError):
        environment.from_string("{{ x * n }}").render(x="xx", n=MAX_TEXT)


def test_what_is_set_while_generating_stays_there(tmp_path: Path) -> None:
    text = "{% set x = 1 %}{% generation %}{% set x = 2 %}{{ x }}{% endgeneration %}{{ x }}"
    assert make(text, tmp_path).render([USER]) == by_transformers(text, [USER], {}) == "21"
