"""Calls of tools and their results as clients send them back, whatever there is beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.options.config import make_config
from actorserve.actors.renderer.templates.chat_template import ChatTemplate, TemplateProblem
from actorserve.actors.renderer.templates.problem import Declined

from ..made import make
from .conversations import USER, call, calls, parts, result
from .templates import ALL
from .test_chat_template import by_transformers

CALLED = "{% for c in m.tool_calls %}({{ c.function.name }}){% endfor %}{% endfor %}"
JOINS = "{% for m in messages %}{{ '<' + m.content + '>' }}" + CALLED
SPLITS = "{% for m in messages %}<{{ m['content'].split('</think>')[-1] }}>" + CALLED
AS_JSON = (  # a type that JSON does not know, and not something undefined, is what is wrong then
    "{% for m in messages %}{% set c = m.content %}<{{ c if c is string else c | tojson }}>" + CALLED
)
WRITES_NULLS = "{% for m in messages %}<{{ m.get('content') }}>" + CALLED
NO_CALLS_BESIDE = (  # DeepSeek R1's distillates
    "{% for m in messages %}{% if m.role == 'assistant' and m['content'] is none %}"
    "{% for c in m['tool_calls'] %}({{ c.function.name }}){% endfor %}{% endif %}"
    "{% if m.role == 'assistant' and m['content'] is not none %}<{{ m.content.split('</think>')[-1] }}>{% endif %}"
    "{% endfor %}"
)
CALL = call(a=1)


@pytest.mark.parametrize("template", [JOINS, SPLITS, AS_JSON])
@pytest.mark.parametrize("without", [{}, {"content": None}])
def test_a_call_needs_no_text_beside_it(template: str, without: dict[str, Any], tmp_path: Path) -> None:
    """OpenAI's clients send null, and most templates fail there, as transformers does."""
    ours = make(template, tmp_path)
    expected = ours.render([USER, calls(CALL, content=""), result("4")])
    assert ours.render([USER, calls(CALL, **without), result("4")]) == expected
    assert "(add)" in expected and expected.endswith("<4>")


def test_a_result_needs_no_text(tmp_path: Path) -> None:
    for template in (JOINS, WRITES_NULLS):  # the second as Gemma 4's
        assert make(template, tmp_path).render([USER, calls(CALL, content=""), result(None)]).endswith("<>(add)<>")


def test_what_a_template_has_against_a_conversation_is_told_as_ever(tmp_path: Path) -> None:
    messages = [USER, calls(CALL, content=None)]
    with pytest.raises(TemplateProblem, match="no attribute 'other'"):
        make("{{ messages[1].content.x }}{{ messages[1].other.x }}", tmp_path).render([USER, calls(CALL, content="")])
    raises = "{% for m in messages if m.content is none or m.content == '' %}{% endfor %}{{ raise_exception('no') }}"
    with pytest.raises(TemplateProblem, match=r"^no$"):
        make(raises, tmp_path).render(messages)


def test_null_is_tried_first_where_a_template_asks_for_it(tmp_path: Path) -> None:
    """transformers leaves it out, and such templates fail there; where they do not, nothing is other."""
    asks = "{% for m in messages %}{{ 'NONE' if m.content is none else '<' + m.content + '>' }}{% endfor %}"
    messages: list[dict[str, Any]] = [USER, {"role": "assistant", "content": None}]
    assert make(asks, tmp_path).render(messages) == f"<{USER['content']}>NONE"
    never = "{% for m in messages %}{% if m.content is none %}NONE{% else %}{{ m.content }}{% endif %}{% endfor %}"
    assert make(never, tmp_path).render(messages) == by_transformers(never, messages, {}) == USER["content"]
    either = "{% if messages[1].content is none %}{{ raise_exception('no') }}{% endif %}{{ messages[1].content + '!' }}"
    assert make(either, tmp_path).render(messages) == "!"


@pytest.mark.parametrize("content", [{}, {"content": None}, {"content": ""}])
def test_calls_are_written_where_a_template_has_them_for_no_content_alone(
    content: dict[str, Any], tmp_path: Path
) -> None:
    for template in (NO_CALLS_BESIDE, NO_CALLS_BESIDE.replace("m['content'] is none", "not m['content']")):
        assert make(template, tmp_path).render([USER, calls(CALL, **content), result("4")]) in ("(add)", "(add)<>")


def test_a_text_beside_such_calls_stands_before_them(tmp_path: Path) -> None:
    """The template would write the text, and its result with no call before it."""
    for content in ("Let me see.", parts("Let me see.")):
        turn = calls(CALL, CALL, content=content, reasoning_content="Hm.")
        assert make(NO_CALLS_BESIDE, tmp_path).render([USER, turn, result("4")]) == "<Let me see.>(add)(add)"


def test_the_final_message_goes_on_behind_calls_without_a_content(tmp_path: Path) -> None:
    begun = {"role": "assistant", "content": "So"}
    text = make(JOINS, tmp_path).render(
        [USER, calls(CALL, content=None), result("4"), begun], add_generation_prompt=False, continue_final_message=True
    )
    assert text.endswith("<>(add)<4><So")


def test_no_calls_are_as_if_there_were_no_field(tmp_path: Path) -> None:
    """Some clients send an empty list with each message; templates ask only whether it is there."""
    asks = "{% for m in messages %}{{ m.tool_calls[0].id if 'tool_calls' in m }}{{ m.content }}{% endfor %}"
    ours = make(asks, tmp_path)
    assert ours.render([USER, {"role": "assistant", "content": "4", "tool_calls": []}]).endswith("4")
    assert ours.render([USER, calls(CALL, content="4")]).endswith("call_000014")


@pytest.mark.parametrize(
    ("arguments", "whole"),
    [
        ('{"a": 1, "b": "x y', {"a": 1}),
        ('{"a": {"b": [1, 2', {"a": {"b": [1, 2]}}),
        ('{"a": 1} x', {"a": 1}),
        ('{"a": "b\nc"}', {"a": "b\nc"}),
        ("{", {}),
        ("{'a': 1}", {}),
        (" ", {}),
        ("", {}),
        ("null", {}),
        ("[1]", {}),
        ('"a"', {}),
        ("9" * 5000, {}),
        (None, {}),
        ([1], {}),
        ({"a": 1}, {"a": 1}),
    ],
)
def test_arguments_are_an_object_whatever_was_sent(arguments: Any, whole: Any, tmp_path: Path) -> None:
    """A model's own call that was cut off comes back in the next request, and in all that follow."""
    messages = [USER, calls({"type": "function", "function": {"name": "add", "arguments": arguments}}, content="")]
    assert f'"arguments": {json.dumps(whole)}' in make(ALL["qwen_2_5"], tmp_path).render(messages)
    items = "{% for k, v in messages[1].tool_calls[0].function.arguments.items() %}{{ k }}{% endfor %}"
    assert make(items, tmp_path).render(messages) == "".join(whole)


@pytest.mark.parametrize("arguments", ["{", "{'a': 1}", '{"a": 1} x'])
def test_arguments_stay_the_text_that_they_are_for_templates_that_read_texts(arguments: str, tmp_path: Path) -> None:
    messages = [USER, calls({"type": "function", "function": {"name": "add", "arguments": arguments}}, content="")]
    assert arguments in make(ALL["deepseek_v3"], tmp_path, bos_token="").render(messages)
    messages[1]["tool_calls"][0]["function"]["arguments"] = None
    assert "{}" in make(ALL["deepseek_v3"], tmp_path, bos_token="").render(messages)


ONLY_USERS_HAVE_PARTS = (  # as in GLM 4.6 and many others
    "{% for m in messages %}{% if m.role == 'user' %}{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}[{{ p.text }}]{% endfor %}{% endif %}{% else %}<{{ m.content }}>{% endif %}{% endfor %}"
)


@pytest.mark.parametrize(
    ("message", "text"),
    [
        ({"role": "system", "content": parts("a", "b")}, "ab"),
        ({"role": "developer", "content": parts("a", "b")}, "ab"),
        ({"role": "tool", "tool_call_id": "c", "content": parts("a", "b")}, "a\nb"),
        (calls(CALL, content=parts("a", "b")), "ab"),
    ],
)
def test_texts_in_parts_are_one_text_where_templates_expect_one(
    message: dict[str, Any], text: str, tmp_path: Path
) -> None:
    """Anthropic's clients send results and instructions in blocks. Templates that loop over them put nothing between;
    between those of a result there is what vLLM puts there.
    """
    both = [message, {"role": "user", "content": parts("a", "b")}]
    ours = make(ONLY_USERS_HAVE_PARTS, tmp_path)
    assert ours.render(both) == f"<{text}>[a][b]"
    picture = {**message, "content": [*parts("a"), {"type": "image"}]}
    assert "image" in ours.render([picture, USER]), "which no text can stand for"
    config = make_config({"chat_template": ONLY_USERS_HAVE_PARTS, "chat_template_content_format": "openai"})
    assert "'text': 'b'" in ChatTemplate(config, ours.model).render(both), "as the operator wants it"


BY_MACRO = (  # as in Kimi K3, Gemma 4, Qwen3.5 and many others
    "{% macro said(c) %}{% if c is string %}{{ c }}{% else %}{% for p in c %}[{{ p.text }}]{% endfor %}{% endif %}"
    "{% endmacro %}{% for m in messages %}{{ said(m.content) }}{% endfor %}"
)
AS_THEY_ARE = "said(m.content) if m.role == 'user' else m.content"
FIRST = "m.content if m.content is string else m.content[0].text"
OF_RESULTS = {
    "the template writes each": (BY_MACRO, "[a][b]"),
    "it writes the first alone": (BY_MACRO.replace("said(m.content)", FIRST), "a\nb"),
    "it writes them as Python does": (BY_MACRO.replace("said(m.content)", AS_THEY_ARE), "a\nb"),
    "it writes them as JSON": (BY_MACRO.replace("said(m.content)", f"({AS_THEY_ARE}) | tojson"), '"a\\nb"'),
    "it refuses them": (BY_MACRO + "{{ messages[2].content.strip() if messages[2].role == 'tool' }}", "a\nb"),
}


@pytest.mark.parametrize("name", OF_RESULTS)
def test_results_in_parts(name: str, tmp_path: Path) -> None:
    template, text = OF_RESULTS[name]
    assert make(template, tmp_path).render([USER, calls(CALL, content=""), result(parts("a", "b"))]).endswith(text)


# --- what was said and thought before them ---------------------------------------------------------------------------

GPT_OSS = next(text for text in ALL.values() if "Cannot pass both content and thinking" in text)
ANALYSIS = "<|start|>assistant<|channel|>analysis<|message|>"


def said(content: Any, **fields: Any) -> dict[str, Any]:
    return calls(call("look", 1, city="Rome"), content=content, **fields)


@pytest.mark.parametrize("name", ["reasoning_content", "reasoning", "thinking"])
@pytest.mark.parametrize("content", ["Let me look.", [{"type": "text", "text": "Let me look."}]])
def test_both_are_thinking(content: Any, name: str, tmp_path: Path) -> None:
    """As this server's own answers are sent back."""
    turn = said(content, **{name: "Which city?"})
    text = make(GPT_OSS, tmp_path).render([USER, turn, result("2°")])
    assert f"{ANALYSIS}Which city?\n\nLet me look.<|end|>" in text


def test_one_of_them_stays_as_it_is(tmp_path: Path) -> None:
    render = make(GPT_OSS, tmp_path).render
    assert f"{ANALYSIS}Which city?<|end|>" in render([USER, said("", thinking="Which city?"), result("2°")])
    assert f"{ANALYSIS}Let me look.<|end|>" in render([USER, said("Let me look."), result("2°")])


def test_other_complaints_are_told(tmp_path: Path) -> None:
    with pytest.raises(Declined, match="no previous assistant message"):
        make(GPT_OSS, tmp_path).render([USER, result("2°")])
