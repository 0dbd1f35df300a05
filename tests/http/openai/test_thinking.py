"""Thinking by other servers' names: the chat that asks for the same, or a refusal that names the field."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.topics.prompts import ChatPrompt, TextPrompt
from actorserve.http.generation.adapter import chat_request
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.unsupported import read
from actorserve.http.generation.prepare import PreparedRequest, ask_chat
from actorserve.http.openai.rendering import check_renders
from actorserve.http.openai.responses.requests import to_chat
from actorserve.http.openai.responses.schemas import ResponsesRequest
from actorserve.http.openai.schemas import ChatRequest
from actorserve.http.output.parsers.registry import PLUGIN
from tests.http.bodies import HI, body_of, refusal
from tests.http.serving import SETTINGS

THINKS = replace(SETTINGS, reasoning_parser="qwen3")
ON, OFF = dict.fromkeys(("enable_thinking", "thinking"), True), dict.fromkeys(("enable_thinking", "thinking"), False)
BUDGET = {"type": "enabled", "budget_tokens": 9}


def ask(settings: Any = THINKS, **fields: Any) -> PreparedRequest:
    return ask_chat(decode(ChatRequest, body_of(messages=HI, **fields)), settings, "id")


def variables(**fields: Any) -> Any:
    """What the template is told."""
    (prompt,) = ask(**fields).prompts
    assert isinstance(prompt, ChatPrompt)
    return msgspec.json.decode(prompt.template_kwargs or b"{}")


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({"enable_thinking": False}, OFF),
        ({"enable_thinking": True}, ON),
        ({"thinking": {"type": "disabled"}}, OFF),
        ({"thinking": {"type": "enabled"}}, ON),
        ({"thinking": {"type": "adaptive"}}, {}),
        ({"thinking": {"type": "enabled", "clear_thinking": False}}, {**ON, "clear_thinking": False}),
        ({"thinking": {"clear_thinking": False}}, {"clear_thinking": False}),
        (
            {"thinking": {"type": "enabled", "effort": "high", "keep": "all"}},
            {**ON, "reasoning_effort": "high", "preserve_thinking": True},
        ),
        ({"thinking": {"type": "enabled", "keep": None}}, ON),
        ({"reasoning": {"effort": "low", "summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"reasoning": {"effort": "low", "generate_summary": "auto"}}, {"reasoning_effort": "low"}),
        ({"thinking": False, "enable_thinking": False}, OFF),
        ({"reasoning": {"enabled": False}}, OFF),
        ({"reasoning": {"effort": "none"}}, {**OFF, "reasoning_effort": "none"}),
        ({"reasoning": {"effort": "low", "enabled": True}}, {**ON, "reasoning_effort": "low"}),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "low"}, {"reasoning_effort": "low"}),
        ({"reasoning": {}, "thinking": None}, {}),
        ({"enable_thinking": False, "chat_template_kwargs": {"thinking": True}}, {**OFF, "thinking": True}),
    ],
)
def test_the_template_is_told(fields: dict[str, Any], told: dict[str, Any]) -> None:
    assert variables(**fields) == told


def test_how_much_is_thought_and_whether_it_is_told() -> None:
    asked: list[dict[str, Any]] = [{"reasoning": {"max_tokens": 9}}, {"thinking": BUDGET}, {"thinking_budget": 9}]
    asked += [{"thinking_budget_tokens": 9}, {"reasoning_budget_tokens": 9}]
    for fields in asked:
        assert ask(**fields).rendering["thinking_budget"] == 9
    assert ask(thinking_budget=-1).rendering["thinking_budget"] is None
    assert ask(reasoning={"exclude": True}).wants.reasoning is False
    assert ask(thinking={"type": "adaptive", "display": "omitted"}).wants.reasoning is False
    assert ask(thinking={"type": "adaptive", "display": "summarized"}).wants.reasoning is True
    assert ask(reasoning={"exclude": False}).wants.reasoning is ask().wants.reasoning is True


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"reasoning": {"enable": True}}, "reasoning.enable"),
        ({"reasoning": {"max_tokens": 0}}, "reasoning.max_tokens"),
        ({"reasoning": "high"}, "reasoning"),
        ({"thinking": {"type": "deep"}}, "thinking.type"),
        ({"thinking": {"keep": "some"}}, "thinking.keep"),
        ({"thinking": {"effort": "low"}, "reasoning_effort": "high"}, "thinking.effort"),
        ({"thinking": {"type": "disabled"}, "enable_thinking": True}, "thinking"),
        ({"thinking": True, "reasoning": {"enabled": False}}, "reasoning.enabled"),
        ({"reasoning": {"effort": "low"}, "reasoning_effort": "high"}, "reasoning.effort"),
        ({"reasoning": {"exclude": True}, "include_reasoning": True}, "reasoning.exclude"),
        ({"reasoning": {"max_tokens": 8}, "thinking": BUDGET}, "reasoning.max_tokens"),
        ({"thinking": BUDGET, "thinking_token_budget": 8}, "thinking.budget_tokens"),
        ({"thinking_budget": 9, "thinking_token_budget": 8}, "thinking_budget"),
        ({"thinking_budget": -2}, "thinking_budget"),
        ({"thinking_budget_tokens": 9, "reasoning_budget_tokens": 8}, "reasoning_budget_tokens"),
        ({"reasoning_budget_tokens": -2}, "reasoning_budget_tokens"),
        ({"thinking_budget": 1 << 31}, "thinking_budget"),
        ({"reasoning": {"max_tokens": 1 << 31}}, "reasoning.max_tokens"),
        ({"thinking": {"budget_tokens": 1 << 31}}, "thinking.budget_tokens"),
        ({"thinking": {"display": "all"}}, "thinking.display"),
        ({"thinking": {"display": "omitted"}, "include_reasoning": True}, "thinking.display"),
    ],
)
def test_what_cannot_be_is_named(fields: dict[str, Any], param: str) -> None:
    assert refusal(ask, **fields).param == param


@pytest.mark.parametrize(
    ("parser", "fields", "param"),
    [
        (PLUGIN, {"reasoning": {"max_tokens": 9}}, "reasoning.max_tokens"),
        (PLUGIN, {"thinking": BUDGET}, "thinking.budget_tokens"),
        (PLUGIN, {"thinking_budget": 9}, "thinking_budget"),
        (None, {"thinking_token_budget": 9}, "thinking_token_budget"),
    ],
)
def test_a_budget_needs_a_model_whose_thinking_is_known(parser: str | None, fields: dict[str, Any], param: str) -> None:
    error = refusal(ask, replace(SETTINGS, reasoning_parser=parser), **fields)
    assert error.param == param and error.message.startswith(f"{param}: how this model marks its thinking")


@pytest.mark.parametrize("fields", [{"reasoning": {"max_tokens": 9}}, {"thinking": BUDGET}, {"thinking_budget": 9}])
def test_a_model_that_does_not_think_keeps_to_any_budget(fields: dict[str, Any]) -> None:
    assert ask(SETTINGS, **fields).rendering["thinking_budget"] is None


def test_a_budget_that_cannot_be_rendered_is_named_as_its_client_does() -> None:
    body = decode(ChatRequest, body_of(messages=HI, thinking=BUDGET))
    assert refusal(check_renders, body, TextPrompt("a")).param == "thinking.budget_tokens"


@pytest.mark.parametrize("on", [True, False])
def test_responses_take_qwens_names_for_it(on: bool) -> None:
    body = read(ResponsesRequest, body_of(input="a", enable_thinking=on, thinking_budget=9))
    chat = chat_request(to_chat(body))
    assert chat.chat_template_kwargs == (ON if on else OFF) and chat.thinking_token_budget == 9


def test_responses_have_another_name_for_the_rest() -> None:
    fields: dict[str, Any] = {"thinking": {"type": "disabled"}}
    assert refusal(read, ResponsesRequest, body_of(input="a", **fields)).param == "thinking"
