"""Our rendering is transformers' rendering, for many formats and conversations; what must not be is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from copy import deepcopy
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from jinja2 import TemplateError
from tokenizers import Tokenizer, models
from transformers import PreTrainedTokenizerFast

from actorserve.actors.options.config import ConfigError
from actorserve.actors.renderer.templates import chat_template as module
from actorserve.actors.renderer.templates.chat_template import ChatTemplate, TemplateProblem
from actorserve.actors.renderer.templates.turns.alternation import alternating
from actorserve.actors.renderer.templates.turns.later_system import first_said_by_user, said_by_user
from actorserve.actors.renderer.templates.turns.rounds import one_by_one

from ..made import known, make
from .conversations import CONVERSATIONS, IN_PARTS, OPTIONS, TOOLS, USER
from .templates import ALL, CHATML, LLAMA_3, PARTS

# Most templates read contents as text and arguments as objects. These do not.
READS_PARTS = {"parts", "llama_4", "kimi_k2", "glm_45", "gemma_3"}
WRITES_RESULTS_IN_PARTS = {"parts", "llama_4", "kimi_k2"}
READS_ARGUMENTS_AS_TEXT = {"deepseek_v3"}
WRITES_ONE_CALL = {"llama_3_1"}
HAS_SYSTEM_BESIDE_LAST_USER = {"mistral_v3"}
LEAVES_OUT_LATER_SYSTEM = {"smollm_3", "command_a"}
KNOWS_DEVELOPERS = {"harmony"}  # to all others they are the system
LEAVES_OUT_DEVELOPERS = {"nemotron"}  # of those: these name the role
ALWAYS_THINKS = {"harmony"}  # where that is not wanted, as little as can be


@cache
def a_tokenizer() -> PreTrainedTokenizerFast:
    words = Tokenizer(models.WordLevel({"x": 0}, "x"))
    return PreTrainedTokenizerFast(tokenizer_object=words, bos_token="<s>", eos_token="</s>")


def by_transformers(text: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    options = dict(options)
    variables = options.pop("variables", {})
    rendered = a_tokenizer().apply_chat_template(messages, chat_template=text, tokenize=False, **options, **variables)
    assert isinstance(rendered, str)
    return rendered


def as_read(name: str, messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """What somebody who knows the template would give it."""
    messages = deepcopy(messages)
    if name in LEAVES_OUT_LATER_SYSTEM:
        messages = said_by_user(messages) or messages
    if name in HAS_SYSTEM_BESIDE_LAST_USER and messages[-1]["role"] != "user":
        messages = first_said_by_user(messages) or messages
    if name in WRITES_ONE_CALL:
        messages = one_by_one(messages)
    for message in messages:
        if message["role"] == "developer" and name not in KNOWS_DEVELOPERS:
            message["role"] = "system"
        is_said = message["role"] in ("user", "assistant") and not message.get("tool_calls")
        is_written = message["role"] == "tool" and name in WRITES_RESULTS_IN_PARTS
        if isinstance(message.get("content"), list) and not (name in READS_PARTS and is_said) and not is_written:
            message["content"] = "\n".join(part["text"] for part in message["content"])
        for call in message.get("tool_calls") or []:
            if name in READS_ARGUMENTS_AS_TEXT:
                call["function"]["arguments"] = json.dumps(call["function"]["arguments"], ensure_ascii=False)
    return messages


def expected_of(name: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    """As transformers has it; where the template fails for a message without a content, with an empty one, and where it
    refuses system messages amid the others, with the user saying them, or turns that do not alternate, with such, or
    any system message, with the user saying that.
    """
    if name in ALWAYS_THINKS and options.get("variables", {}).get("enable_thinking") is False:
        options = options | {"variables": options["variables"] | {"reasoning_effort": "low"}}
    for change in (said_by_user, alternating, first_said_by_user):
        try:
            return filled(name, messages, options)
        except TemplateError:
            messages = change(messages) or messages
    return filled(name, messages, options)


def filled(name: str, messages: list[dict[str, Any]], options: dict[str, Any]) -> str:
    try:
        return by_transformers(ALL[name], as_read(name, messages), options)
    except (TemplateError, TypeError):
        return by_transformers(ALL[name], as_read(name, with_contents(messages)), options)


def with_contents(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Some clients send none beside calls."""
    return [
        {**message, "content": ""} if message["role"] == "assistant" and message.get("content") is None else message
        for message in messages
    ]


@pytest.mark.parametrize("name", ALL)
def test_rendering_is_that_of_transformers(name: str) -> None:
    """For every conversation, with each set of options: the same text, or both refuse."""
    ours = known(name)
    for options in OPTIONS:
        check_conversations(ours, name, options)


def check_conversations(ours: ChatTemplate, name: str, options: str) -> None:
    rendered = 0
    for title, messages in (CONVERSATIONS | IN_PARTS).items():
        given = deepcopy(messages)
        try:
            expected = expected_of(name, messages, OPTIONS[options])
        except (TemplateError, ValueError, TypeError):
            with pytest.raises(TemplateProblem):
                ours.render(given, **OPTIONS[options])
            continue
        assert ours.render(given, **OPTIONS[options]) == expected, (options, title)
        assert given == messages
        rendered += 1
    assert rendered


def test_there_are_enough_templates_and_each_renders_most_conversations() -> None:
    """A template that refuses nearly all would be compared with nothing."""
    assert len(ALL) >= 24
    for name in ALL:
        ours, rendered = known(name), 0
        for messages in CONVERSATIONS.values():
            with suppress(TemplateProblem):
                rendered += bool(ours.render(messages, tools=TOOLS))
        assert rendered >= 5, name


def test_content_has_the_form_that_the_template_reads(tmp_path: Path) -> None:
    parts = [{"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]}]
    assert make(CHATML, tmp_path).render(parts).startswith("<|im_start|>user\none\ntwo<|im_end|>")
    ours = make(PARTS, tmp_path)
    assert "onetwo" in ours.render(parts)
    assert ours.render([USER]) == ours.render(
        [{"role": "user", "content": [{"type": "text", "text": USER["content"]}]}]
    )


@pytest.mark.parametrize(
    "text",
    [
        "{{ ''.__class__.__mro__ }}x",
        "{{ messages.__class__.__base__.__subclasses__() }}",
        "{{ dict.__init__.__globals__ }}",
        "{{ namespace(_x=1) }}",
        "{% set ns = namespace() %}{% set ns._x = 1 %}{{ ns }}",
        "{{ raise_exception('not like this') }}",
        "{{ messages[99].role }}",
        "{{ unknown() }}",
        "{{ 1 / 0 }}",
        "{{ messages.append(1) }}",
        "{{ 'x' * 99999999999 }}",
        "{% for i in range(10 ** 9) %}x{% endfor %}",
        "{% for i in range(9999) %}{% for j in range(9999) %}{{ 'x' * 9999 }}{% endfor %}{% endfor %}",
        "{{ '%s' | format(cycler.__init__.__globals__) }}",
        "{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
        "{{ messages | tojson(indent='x' * 3, nothing=1) }}",
        "{{ strftime_now(5) }}",
        "{{ [3, 'a'] | sort }}",
    ],
)
def test_what_a_template_must_not_do_is_a_problem_of_the_request(text: str, tmp_path: Path) -> None:
    ours, rendered, problem = make(text, tmp_path), "", ""
    try:
        rendered = ours.render([USER])
    except TemplateProblem as raised:
        problem = str(raised)
    assert rendered or problem
    assert "class" not in rendered and "globals" not in rendered


def test_output_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_TEXT", 1000)
    with pytest.raises(TemplateProblem, match="1,000"):
        make("{% for i in range(2000) %}x{% endfor %}", tmp_path).render([USER])


def test_variables_must_not_hide_the_conversation(tmp_path: Path) -> None:
    with pytest.raises(TemplateProblem, match="messages"):
        make(CHATML, tmp_path).render([USER], variables={"messages": []})


def test_a_model_without_a_template_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(TemplateProblem, match="--chat-template"):
        make("", tmp_path).render([USER])


def test_templates_are_found(tmp_path: Path) -> None:
    config = {
        "chat_template": [{"name": "default", "template": "D{{ x }}"}, {"name": "tool_use", "template": "T{{ x }}"}]
    }
    ours = make("", tmp_path, **config)  # type: ignore[arg-type]
    assert ours.render([USER]) == "D" and ours.render([USER], tools=TOOLS) == "T"
    assert make("", tmp_path, chat_template=LLAMA_3, bos_token="").render([USER]).startswith("<|start_header_id|>user")
    (tmp_path / "chat_template.jinja").write_text("from a file{{ x }}")
    assert make("", tmp_path).render([USER]) == "from a file"
    with pytest.raises(ConfigError, match="line 1"):
        make("{% if %}", tmp_path)
