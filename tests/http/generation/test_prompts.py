"""What chat templates are given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation import prompts
from actorserve.http.generation.prepare import ask_chat
from actorserve.http.generation.prompts import chat_prompt, check_messages
from actorserve.http.openai.schemas import ChatRequest
from actorserve.http.openai.thinking import rename_thinking
from actorserve.http.settings import LogitsPlugins, MediaRules
from tests.http.serving import HI, SETTINGS


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, {"enable_thinking": True, "style": "short"}),
        ({"chat_template_kwargs": {"style": "long"}}, {"enable_thinking": True, "style": "long"}),
        (
            {"reasoning_effort": "none"},
            {"enable_thinking": False, "thinking": False, "style": "short", "reasoning_effort": "none"},
        ),
    ],
)
def test_a_request_says_more_than_the_option(asked: dict[str, Any], given: dict[str, Any]) -> None:
    settings = replace(SETTINGS, template_kwargs={"enable_thinking": True, "style": "short"})
    request = msgspec.json.decode(json.dumps({"messages": HI, **asked}), type=ChatRequest)
    assert json.loads(chat_prompt(request, settings).template_kwargs or b"") == given


@pytest.mark.parametrize(
    ("option", "asked", "left"),
    [
        ({"thinking_effort": "max"}, {"reasoning_effort": "low"}, None),
        ({"thinking_effort": "max"}, {"reasoning_effort": "none"}, None),
        ({"thinking_effort": "max"}, {}, "max"),
        ({"thinking_effort": "max"}, {"chat_template_kwargs": {"thinking_effort": "low"}}, "low"),
        ({"thinking_mode": "enabled"}, {"thinking": {"type": "disabled"}}, None),
        ({"thinking_mode": "adaptive"}, {"chat_template_kwargs": {"thinking": True}}, None),
        ({"thinking_mode": "enabled"}, {"reasoning_effort": "low"}, "enabled"),
        ({"thinking_mode": "chat"}, {"enable_thinking": True}, "chat"),
        ({"reasoning_effort": "high"}, {"enable_thinking": False}, None),
        ({"reasoning_effort": "high"}, {"enable_thinking": True}, "high"),
        ({"enable_thinking": False}, {"reasoning_effort": "high"}, False),
    ],
)
def test_a_request_wins_over_the_option_by_its_own_names(
    option: dict[str, Any], asked: dict[str, Any], left: str | None
) -> None:
    """Templates with these names are told by them what it says by others, if they have no value."""
    request = msgspec.json.decode(json.dumps({"messages": HI, **asked}), type=ChatRequest)
    rename_thinking(request)
    given = json.loads(chat_prompt(request, replace(SETTINGS, template_kwargs=option)).template_kwargs or b"{}")
    (name,) = option
    assert given.get(name) == left


@pytest.mark.parametrize(
    ("asked", "effort"),
    [
        ({"enable_thinking": False}, None),
        ({"enable_thinking": True}, "high"),
        ({"chat_template_kwargs": {"enable_thinking": False, "reasoning_effort": "low"}}, "low"),
    ],
)
def test_an_effort_is_none_of_a_request_that_turns_thinking_off(asked: dict[str, Any], effort: str | None) -> None:
    """A model that always thinks would take it for one to think by."""
    request = msgspec.json.decode(json.dumps({"messages": HI, "reasoning_effort": "high", **asked}), type=ChatRequest)
    rename_thinking(request)
    assert json.loads(chat_prompt(request).template_kwargs or b"{}").get("reasoning_effort") == effort


@pytest.mark.parametrize(
    ("choice", "more", "told"),
    [("none", {}, False), ("auto", {}, True), (None, {}, True), ("none", {"structured_outputs": {"regex": "a"}}, True)],
)
def test_tools_that_may_not_be_called_are_left_out_where_that_is_asked_for(
    choice: str | None, more: dict[str, Any], told: bool
) -> None:
    tools = [{"type": "function", "function": {"name": "look"}}]
    body = {"messages": HI, "tools": tools, "tool_choice": choice} | more
    request = msgspec.json.decode(json.dumps(body), type=ChatRequest)
    assert json.loads(chat_prompt(request, SETTINGS).tools or b"null") == tools
    settings = replace(SETTINGS, exclude_tools_when_tool_choice_none=True)
    assert json.loads(chat_prompt(request, settings).tools or b"null") == (tools if told else None)


@pytest.mark.parametrize(
    ("field", "given"),
    [("mm_processor_kwargs", {"num_frames": 2}), ("media_io_kwargs", {"video": {"num_frames": 2}})],
)
def test_requests_may_be_kept_from_changing_how_pictures_are_read(field: str, given: dict[str, Any]) -> None:
    rules = MediaRules({"image": 1, "video": 1}, 1000, False, changes=("fps", "num_frames"), trusts_changes=False)
    body = {"messages": HI, field: given}
    request = msgspec.json.decode(json.dumps(body), type=ChatRequest)
    chat_prompt(request, replace(SETTINGS, media=replace(rules, trusts_changes=True)))
    with pytest.raises(ApiError, match=f"^{field}: it is taken from requests only with --trust-request-mm-kwargs"):
        chat_prompt(request, replace(SETTINGS, media=rules))


async def test_whoever_makes_a_request_s_job_knows_its_processors() -> None:
    """Their names are told where one of them fails."""
    settings = replace(SETTINGS, plugins=LogitsPlugins(["mine:A"], "mine[.].*"))
    asked: dict[str, Any] = {"messages": HI, "logits_processors": ["mine.b"]}
    request = msgspec.json.decode(json.dumps(asked), type=ChatRequest)
    assert ask_chat(request, settings, "id").new_job().plugins == ["mine:A", "mine.b"]


def test_a_text_is_not_looked_through_for_pictures(monkeypatch: pytest.MonkeyPatch) -> None:
    """Letter by letter, one of megabytes holds up all others."""
    looked: list[object] = []
    monkeypatch.setattr(prompts, "is_media", looked.append)
    messages = [*HI, {"role": "user", "content": ["a"]}]
    check_messages(msgspec.Raw(json.dumps(messages).encode()), MediaRules({"image": 1}, 1000, False))
    assert looked == ["a"]
