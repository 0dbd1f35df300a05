"""Each template is given contents and arguments in the form that it reads, however the client sent them."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.options.config import make_config
from actorserve.actors.renderer.templates.chat_template import ChatTemplate, TemplateProblem
from actorserve.actors.renderer.templates.content_formats import Reads, read_forms
from actorserve.actors.renderer.templates.sandbox import make_environment

from ..made import known, make
from .conversations import NESTED, USER, calls, parts, result
from .templates import ALL, CHATML
from .test_chat_template import (
    KNOWS_DEVELOPERS,
    LEAVES_OUT_DEVELOPERS,
    READS_ARGUMENTS_AS_TEXT,
    READS_PARTS,
    by_transformers,
)


@pytest.mark.parametrize(
    ("text", "reads"),
    [
        ("{{ messages[0].content }}", Reads(False, True)),
        ("{% for p in m.content %}{{ p.text }}{% endfor %}", Reads(True, False)),
        ("{% for p in m['content'] | list %}{% endfor %}", Reads(True, False)),
        ("{% set c = m.content %}{% for p in c %}{{ p.text }}{% endfor %}", Reads(True, False)),
        ("{% set n = namespace() %}{% set n.c = m.content %}{% for p in n.c %}{% endfor %}", Reads(True, False)),
        ("{% for p in m.content or [] %}{% endfor %}", Reads(True, False)),
        ("{% for p in (m.content if m.content else []) %}{% endfor %}", Reads(True, False)),
        ("{% for p in m.get('content') %}{% endfor %}", Reads(True, False)),
        ("{% with c = m.content %}{% for p in c %}{% endfor %}{% endwith %}", Reads(True, False)),
        ("{% macro f(x) %}{% for p in x %}{% endfor %}{% endmacro %}{{ f(m.content) }}", Reads(True, False)),
        ("{% macro f(x) %}{% for p in x %}{% endfor %}{% endmacro %}{{ f(x=m.content) }}", Reads(True, False)),
        ("{{ m.content | selectattr('type', 'equalto', 'text') | map(attribute='text') | join }}", Reads(True, False)),
        ("{{ m.content[0].text }}", Reads(True, False)),
        ("{{ m['content'][0]['text'] }}", Reads(True, False)),
        ("{{ m.content[0].upper() }}{{ m.content[0] }}", Reads(False, True)),
        (
            "{% if m['content'] is string %}{% else %}{% for p in m['content'] %}{% endfor %}{% endif %}",
            Reads(True, True),
        ),
        ("{% set c = m.content %}{% if c is not string %}{% for p in c %}{% endfor %}{% endif %}", Reads(True, True)),
        ("{% for p in m.content.split('x') %}{% endfor %}", Reads(False, True)),
        ("{% for c in m.content %}{{ c.function | tojson }}{% endfor %}", Reads(False, True)),
        ("{% for c in m.content %}{{ c['arguments'] | tojson }}{% endfor %}", Reads(False, True)),
        ("{% for c in m.tool_calls or m.content %}{{ c | tojson }}{% endfor %}", Reads(False, True)),
        (
            "{% if m.tool_calls %}{% set t = m.tool_calls %}{% else %}{% set t = m.content %}{% endif %}"
            "{% for c in t %}{{ c | tojson }}{% endfor %}",
            Reads(False, True),
        ),
        ("{% set t = m.tool_calls or m.content %}{% for c in t %}{{ c.text }}{% endfor %}", Reads(True, False)),
        (
            "{% for c in m.content %}{{ c.function }}{% endfor %}{% for c in m.content %}{% endfor %}",
            Reads(True, False),
        ),
        ("{% if x is string %}{% for p in messages[0].content %}{% endfor %}{% endif %}", Reads(True, False)),
        ("{% if m.content is none %}{% endif %}", Reads(False, True, asks_none=True)),
        (
            "{% if m.role == 'a' and m['content'] is none %}{% for c in m['tool_calls'] %}{% endfor %}{% endif %}",
            Reads(False, True, asks_none=True, calls_for_none=True),
        ),
        (
            "{% if m.content is not none %}{{ m.content }}{% endif %}{% for c in m.tool_calls %}{% endfor %}",
            Reads(False, True, asks_none=True),
        ),
        (
            "{% if m.content is none %}{% for c in m.tool_calls %}{% endfor %}"
            "{% else %}{% for c in m.tool_calls %}{% endfor %}{% endif %}",
            Reads(False, True, asks_none=True),
        ),
        ("{% if m.role == 'developer' %}{% endif %}", Reads(False, True, developer=True)),
        ("{% if m.role in ['system', 'developer'] %}{% endif %}", Reads(False, True, developer=True)),
        ("{% if m.role == 'system' %}a developer{% endif %}", Reads(False, True)),
        ("{% if call.id is not defined or call.id | length != 9 %}{% endif %}", Reads(False, True, short_ids=True)),
        ("{% if call['id'] | count == 9 %}{% endif %}", Reads(False, True, short_ids=True)),
        ("{% if call.id | length < 9 %}{% endif %}", Reads(False, True)),
    ],
)
def test_what_a_template_reads(text: str, reads: Reads) -> None:
    assert read_forms(make_environment().parse(text)) == reads


@pytest.mark.parametrize(
    ("text", "as_text"),
    [
        ("{{ 'x' + c.arguments + 'y' }}", True),
        ("{{ 'x' ~ c['arguments'] }}", True),
        ("{{ c.function.arguments }}", True),
        ("{{ c.arguments | trim }}{{ c.arguments | safe }}", True),
        ("{{ c.arguments.strip() ~ '' }}", True),
        ("{% set a = c.arguments %}{{ a }}", True),
        ("{% macro f(a) %}{{ a }}{% endmacro %}{{ f(c.arguments) }}", True),
        ("{% if x %}{{ c.arguments | tojson }}{% else %}{{ '' + c.arguments }}{% endif %}", True),
        ("{{ c.arguments | tojson }}", False),
        ("{{ '{' + c.arguments | tojson + '}' }}", False),
        ("{% set a = c.arguments | tojson %}{{ a }}", False),
        ("{% set a = c.arguments %}{% set a = a | tojson %}{{ a }}", False),
        ("{% for k, v in c.arguments.items() %}{{ k }}{% endfor %}", False),
        ("{% for k, v in c.arguments | items %}{{ k }}{% endfor %}", False),
        ("{% for k in c.arguments %}{{ c.arguments[k] }}{% endfor %}", False),
        ("{% if c.arguments is string %}{{ c.arguments }}{% else %}{{ c.arguments | tojson }}{% endif %}", False),
        ("{{ c.arguments if c.arguments is not mapping else c.arguments | tojson }}", False),
        ("{{ c | tojson }}{{ c.name }}", False),
    ],
)
def test_in_which_form_a_template_reads_arguments(text: str, as_text: bool) -> None:
    assert read_forms(make_environment().parse(text)).arguments_text == as_text


def test_what_is_read_is_found_for_whole_templates() -> None:
    """The lists were made by people who read them."""
    found = {name: read_forms(make_environment().parse(text)) for name, text in ALL.items()}
    assert {name for name, reads in found.items() if reads.parts} == READS_PARTS
    assert {name for name, reads in found.items() if reads.arguments_text} == READS_ARGUMENTS_AS_TEXT
    assert {name for name, reads in found.items() if reads.developer} == KNOWS_DEVELOPERS | LEAVES_OUT_DEVELOPERS
    assert all(reads.text for reads in found.values())


def test_parts_that_are_thinking(tmp_path: Path) -> None:
    """They are the message's own thinking, but for templates that know such parts."""
    said = {"type": "text", "text": "Four."}
    sent: list[dict[str, Any]]
    for thought in ("Two and two.", [{"type": "text", "text": "Two "}, {"type": "text", "text": "and two."}]):
        sent = [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": thought}, said]}]
        whole = "{% for m in messages %}<{{ m.reasoning_content }}|{{ m.content }}>{% endfor %}"
        assert make(whole, tmp_path).render(sent).endswith("<Two and two.|Four.>")
    knows = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}{% else %}{% for p in m.content %}"
        "{% if p.type == 'thinking' %}[{{ p.thinking }}]{% else %}{{ p.text }}{% endif %}"
        "{% endfor %}{% endif %}{% endfor %}"
    )
    sent = [USER, {"role": "assistant", "content": [{"type": "thinking", "thinking": "Two."}, said]}]
    assert make(knows, tmp_path).render(sent).endswith("[Two.]Four.")


def test_arguments_may_be_sent_as_object_or_as_text() -> None:
    """OpenAI's clients send them as JSON text; whichever it is, each template says the same."""
    sent = NESTED["function"]["arguments"]
    as_text = {**NESTED, "function": {"name": "search", "arguments": json.dumps(sent, ensure_ascii=False)}}
    for name in ALL:
        ours = known(name)
        both = [[USER, calls(call, content=""), result("4", 2)] for call in (NESTED, as_text)]
        try:
            expected = ours.render(both[0])
        except TemplateProblem:
            with pytest.raises(TemplateProblem):
                ours.render(both[1])
        else:
            assert ours.render(both[1]) == expected, name


def test_arguments_too_deep_for_json_are_refused(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "add", "arguments": "[" * 100_000}}
    with pytest.raises(TemplateProblem):
        make(ALL["qwen_2_5"], tmp_path).render([USER, calls(call, content="")])


def test_a_call_without_arguments_has_none(tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "now", "arguments": ""}}
    assert '"arguments": {}' in make(ALL["qwen_2_5"], tmp_path).render([USER, calls(call, content="")])
    flat = {"name": "now", "arguments": '{"a": 1}'}
    assert '"arguments": {"a": 1}' in make(ALL["qwen_2_5"], tmp_path).render([USER, calls(flat, content="")])


SHAPE = "{% for m in messages %}{{ m.content | tojson }}{% endfor %}"
SHAPE_OF_BOTH = "{% for m in messages %}{% if m.content is not string %}{% for p in m.content %}{% endfor %}{% endif %}"
TWO: list[dict[str, Any]] = [{"role": "user", "content": parts("a", "b")}]
ONE = [{"role": "user", "content": "a"}]


@pytest.mark.parametrize(
    ("content_format", "text", "messages", "expected"),
    [
        ("auto", SHAPE, TWO, '"a\\nb"'),
        ("string", SHAPE, TWO, '"a\\nb"'),
        ("openai", SHAPE, TWO, json.dumps(parts("a", "b"))),
        ("openai", SHAPE, ONE, json.dumps(parts("a"))),
        ("auto", SHAPE_OF_BOTH + "{{ m.content | tojson }}{% endfor %}", TWO, json.dumps(parts("a", "b"))),
        ("auto", SHAPE_OF_BOTH + "{{ m.content | tojson }}{% endfor %}", ONE, '"a"'),
        ("string", SHAPE_OF_BOTH + "{{ m.content | tojson }}{% endfor %}", TWO, '"a\\nb"'),
        ("openai", SHAPE_OF_BOTH + "{{ m.content | tojson }}{% endfor %}", ONE, json.dumps(parts("a"))),
    ],
)
def test_the_content_format_may_be_given(
    content_format: str, text: str, messages: list[dict[str, Any]], expected: str, tmp_path: Path
) -> None:
    model = make(text, tmp_path).model
    values: dict[str, object] = {"chat_template": text, "chat_template_content_format": content_format}
    assert ChatTemplate(make_config(values), model).render(messages) == expected


def test_a_text_stays_one_where_the_template_asks(tmp_path: Path) -> None:
    """Its branch for parts may render another text: transformers gives it what the client sent."""
    text = (
        "{% for m in messages %}{% if m.content is string %}{{ m.content }}"
        "{% else %}{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% endfor %}"
    )
    both = [{"role": "user", "content": parts("one", "two")}]
    ours = make(text, tmp_path)
    assert ours.render([USER]) == by_transformers(text, [USER], {}) == USER["content"]
    assert ours.render(both) == by_transformers(text, both, {}) == "[one][two]"


def test_continuing_goes_with_parts_too(tmp_path: Path) -> None:
    """The last part that has text is the one that goes on."""
    messages: list[dict[str, Any]] = [
        USER,
        {"role": "assistant", "content": [*parts("one ", "and "), {"type": "image"}]},
    ]
    for name in ("gemma_3", "llama_4", "glm_45"):
        ours = make(ALL[name], tmp_path, bos_token="<s>", eos_token="</s>")
        options = {"add_generation_prompt": False, "continue_final_message": True}
        expected = by_transformers(ALL[name], messages, options)
        assert ours.render(messages, add_generation_prompt=False, continue_final_message=True) == expected
        assert expected.endswith("and") or expected.endswith("and ")
    joined = make(CHATML, tmp_path).render(messages, None, None, None, False, True)
    assert joined.endswith("one \nand \n")
    for content in ([], [{"type": "image"}], None):
        with pytest.raises(TemplateProblem, match="no text to continue") as caught:
            make(ALL["gemma_3"], tmp_path).render(
                [USER, {"role": "assistant", "content": content}], continue_final_message=True
            )
        assert caught.value.param == "continue_final_message"


ROLES = "{% for m in messages %}[{{ m.role }}:{{ m.content }}]{% endfor %}"


def test_a_developer_is_the_system_where_the_template_does_not_know_it(tmp_path: Path) -> None:
    """Many templates leave out what has a role that they do not know, and take one system message."""
    messages: list[dict[str, Any]] = [
        {"role": "system", "content": "s"},
        {"role": "developer", "content": "d"},
        {"role": "developer", "content": "e"},
        USER | {"content": "u"},
        {"role": "developer", "content": "f"},
    ]
    assert make(ROLES, tmp_path).render(messages) == "[system:s\n\nd\n\ne][user:u][system:f]"
    assert messages[0]["content"] == "s", "what was sent is left as it is"
    known = make(ROLES + "{% if messages[0].role == 'developer' %}{% endif %}", tmp_path)
    assert known.render(messages[:2]) == "[system:s][developer:d]"
    read_parts = make(
        "{% for m in messages %}[{{ m.role }}:{% for p in m.content %}{% endfor %}]{% endfor %}", tmp_path
    )
    assert read_parts.render(messages[:2]) == "[system:][system:]"


@pytest.mark.parametrize(
    "names",
    [
        "{% for m in messages if m.role != 'developer' %}[{{ m.role }}:{{ m.content }}]{% endfor %}",
        "{% for m in messages %}{% if m.role == 'developer' %}{{ raise_exception('Not he.') }}{% endif %}"
        "[{{ m.role }}:{{ m.content }}]{% endfor %}",
    ],
)
def test_a_developer_is_the_system_where_the_template_names_it_only_to_leave_it_out(names: str, tmp_path: Path) -> None:
    told = {"role": "developer", "content": "d"}
    ours = make(names, tmp_path)
    assert ours.render([told, USER | {"content": "u"}]) == "[system:d][user:u]"
    assert ours.render([{"role": "system", "content": "s"}, told]) == "[system:s\n\nd]"


STRICT = (
    "{% for m in messages %}{% for c in m.tool_calls or [] %}{% if c.id | length != 9 %}{{ raise_exception('ids') }}"
    "{% endif %}<{{ c.id }}>{% endfor %}{% if m.role == 'tool' %}{% if m.tool_call_id | length != 9 %}"
    "{{ raise_exception('ids') }}{% endif %}({{ m.tool_call_id }}){% endif %}{% endfor %}"
)


def test_ids_are_short_where_the_template_wants_them_so(tmp_path: Path) -> None:
    def ids(template: str, *given: str) -> tuple[list[str], list[str]]:
        made = [{"id": one, "type": "function", "function": {"name": "f", "arguments": {}}} for one in given]
        results = [{"role": "tool", "tool_call_id": one, "content": "r"} for one in given]
        text = make(template, tmp_path).render([USER, calls(*made, content=""), *results])
        return re.findall("<(.*?)>", text), re.findall(r"\((.*?)\)", text)

    long = ["call_0123456789abcdef0_0", "call_0123456789abcdef0_1", "a", ""]
    short, of_results = ids(STRICT, *long, "abcDEF123")
    assert short == of_results and len(set(short)) == 5 and short[-1] == "abcDEF123"
    assert all(len(one) == 9 and one.isalnum() for one in short)
    assert ids(STRICT.replace("!= 9", "< 0"), *long)[0] == long


def test_texts_of_all_types_are_texts_to_templates(tmp_path: Path) -> None:
    contents = [
        {"type": "input_text", "text": "a"},
        {"type": "output_text", "text": "b", "annotations": []},
        {"type": "refusal", "refusal": "c"},
        {"type": "text", "text": "d"},
        "e",
    ]
    message = {"role": "assistant", "content": contents}
    assert make("{{ messages[0].content }}", tmp_path).render([message]) == "a\nb\nc\nd\ne"
    by_type = "{% for p in messages[0].content if p.type == 'text' %}{{ p.text }}{% endfor %}"
    assert make(by_type, tmp_path).render([message]) == "abcde"
