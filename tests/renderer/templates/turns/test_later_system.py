"""What system messages say amid a conversation is told to templates that take none there."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.renderer.templates.chat_template import TemplateProblem
from actorserve.actors.renderer.templates.turns.later_system import first_as_one, said_by_user

from ...made import make

Turns = list[tuple[str, Any]]
STRICT = (
    "{%- for m in messages %}"
    "{%- if m.role == 'system' and not loop.first %}{{ raise_exception('System message must be first.') }}{% endif %}"
    "{%- if m.role == 'user' and not loop.first and messages[loop.index0 - 1].role == 'user' %}"
    "{{ raise_exception('Roles must alternate.') }}{% endif %}"
    "{{ m.role }}:{{ m.content }};{% endfor %}"
)
LENIENT = "{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}"


def turns(*given: tuple[str, Any]) -> list[dict[str, Any]]:
    return [{"role": role, "content": content} for role, content in given]


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ([("system", "a"), ("user", "b"), ("system", "c")], [("system", "a"), ("user", "b\n\nc")]),
        ([("user", "b"), ("system", "c"), ("user", "d")], [("user", "b\n\nc\n\nd")]),
        (
            [("user", "b"), ("assistant", "x"), ("system", "c"), ("system", "d"), ("user", "e")],
            [("user", "b"), ("assistant", "x"), ("user", "c\n\nd\n\ne")],
        ),
        ([("system", "a"), ("system", "b"), ("user", "c")], [("system", "a\n\nb"), ("user", "c")]),
        ([("user", "b"), ("tool", "r"), ("developer", "c")], [("user", "b"), ("tool", "r"), ("user", "c")]),
        ([("user", ""), ("system", "c")], [("user", "c")]),
        (
            [("system", "a"), ("developer", "b"), ("developer", "c"), ("user", "d"), ("developer", "e")],
            [("system", "a"), ("developer", "b\n\nc"), ("user", "d\n\ne")],
        ),
        (
            [("user", [{"type": "text", "text": "b"}]), ("system", "c")],
            [("user", [{"type": "text", "text": "b"}, {"type": "text", "text": "c"}])],
        ),
    ],
)
def test_who_says_what(given: Turns, told: Turns) -> None:
    messages = turns(*given)
    assert said_by_user(messages) == turns(*told)
    assert messages == turns(*given), "the conversation itself stays as it is"


@pytest.mark.parametrize(
    "given",
    [
        [("user", "a")],
        [("system", "a"), ("user", "b")],
        [("user", "a"), ("user", "b")],
        [("system", "a"), ("developer", "b"), ("user", "c")],
    ],
)
def test_where_there_is_none(given: Turns) -> None:
    assert said_by_user(turns(*given)) is None


def test_what_is_said_first_as_one() -> None:
    said = turns(("system", "a"), ("developer", "b"), ("user", "c"), ("system", "d"))
    assert first_as_one(said) == turns(("system", "a\n\nb"), ("user", "c"), ("system", "d"))
    assert first_as_one(said[2:]) is None and first_as_one(said[1:]) is None


CONVERSATION: Turns = [("system", "a"), ("user", "b"), ("assistant", "c"), ("system", "d"), ("user", "e")]


def test_a_template_that_refuses_them(tmp_path: Path) -> None:
    template = make(STRICT, tmp_path)
    assert template.render(turns(*CONVERSATION)) == "system:a;user:b;assistant:c;user:d\n\ne;"
    assert template.render(turns(*CONVERSATION[:3])) == "system:a;user:b;assistant:c;"
    begun = turns(*CONVERSATION, ("assistant", "And"))
    text = template.render(begun, add_generation_prompt=False, continue_final_message=True)
    assert text == "system:a;user:b;assistant:c;user:d\n\ne;assistant:And"


def test_other_templates_are_given_what_was_sent(tmp_path: Path) -> None:
    rendered = make(LENIENT, tmp_path).render(turns(*CONVERSATION))
    assert rendered == "system:a;user:b;assistant:c;system:d;user:e;"


def test_what_else_a_template_refuses(tmp_path: Path) -> None:
    template = make(STRICT + "{{ raise_exception('No.') if messages[-1].content.endswith('c') }}", tmp_path)
    for said in ([("user", "c")], [("user", "a"), ("system", "b"), ("user", "c")]):
        with pytest.raises(TemplateProblem, match=r"^(No|System message must be first)\.$"):
            template.render(turns(*said))


def test_a_template_without_a_system(tmp_path: Path) -> None:
    """As Gemma 2's, and Mistral's first."""
    none = "{{ raise_exception('No system.') if messages[0].role == 'system' }}" + STRICT
    assert make(none, tmp_path).render(turns(*CONVERSATION)) == "user:a\n\nb;assistant:c;user:d\n\ne;"
    assert make(none, tmp_path).render(turns(("system", "a"))) == "user:a;"


def test_a_template_that_has_it_beside_what_was_asked_last(tmp_path: Path) -> None:
    """As Mistral Nemo's: in the rounds of an agent nothing was said by the system."""
    ours = make(
        "{% for m in messages if m.role != 'system' %}{% if loop.last and m.role == 'user' %}{{ messages[0].content }}-"
        "{% endif %}{{ m.role }}:{{ m.content }};{% endfor %}",
        tmp_path,
    )
    asked = turns(("system", "a"), ("user", "b"))
    assert ours.render(asked) == "a-user:b;"
    assert ours.render([*asked, *turns(("tool", "c"))]) == "user:a\n\nb;tool:c;"


LEFT_OUT = {  # all but the first, as gpt-oss' does; those amid a conversation, as MiniMax'; all but the last, as R1's
    "behind the first": "{% for m in messages[:1] if m.role == 'system' %}{{ m.content }};{% endfor %}",
    "behind the beginning": "{% for m in messages[:2] if m.role == 'system' %}{{ m.content }};{% endfor %}",
    "but the last": "{% set n = namespace() %}{% for m in messages if m.role == 'system' %}"
    "{% set n.s = m.content %}{% endfor %}{{ n.s }};",
}
OTHERS = "{% for m in messages if m.role in ('user', 'assistant') %}{{ m.role }}:{{ m.content }};{% endfor %}"


@pytest.mark.parametrize("name", LEFT_OUT)
def test_a_template_that_leaves_some_out(name: str, tmp_path: Path) -> None:
    for role in ("system", "developer"):
        text = make(LEFT_OUT[name] + OTHERS, tmp_path).render(turns(("system", "a"), (role, "b"), *CONVERSATION[1:]))
        assert text == "a\n\nb;user:b;assistant:c;user:d\n\ne;"
    late = make(LEFT_OUT[name] + OTHERS, tmp_path).render(turns(*CONVERSATION[1:]))
    assert late == ("d;user:b;assistant:c;user:e;" if name == "but the last" else "user:b;assistant:c;user:d\n\ne;")


KNOW_DEVELOPERS = {  # as gpt-oss', for which they are the system, and as Apertus', which writes both
    "one": ("{% if messages[0].role in ('system', 'developer') %}{{ messages[0].content }};{% endif %}", "a\n\nb;"),
    "both": (
        "{% for m in messages[:2] if m.role in ('system', 'developer') %}{{ m.role }}:{{ m.content }};{% endfor %}",
        "system:a;developer:b;",
    ),
}


@pytest.mark.parametrize("name", KNOW_DEVELOPERS)
def test_a_template_that_knows_developers(name: str, tmp_path: Path) -> None:
    """What it writes as it is sent stays so."""
    text, begin = KNOW_DEVELOPERS[name]
    said = turns(("system", "a"), ("developer", "b"), *CONVERSATION[1:])
    assert make(text + OTHERS, tmp_path).render(said) == begin + "user:b;assistant:c;user:d\n\ne;"


def test_a_template_that_refuses_a_developer_beside_the_system(tmp_path: Path) -> None:
    strict = "{% if messages[1].role == 'developer' %}{{ raise_exception('One of them.') }}{% endif %}" + STRICT
    text = make(strict, tmp_path).render(turns(("system", "a"), ("developer", "b"), ("user", "c")))
    assert text == "system:a\n\nb;user:c;"
