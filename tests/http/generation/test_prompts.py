"""What chat templates are given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actorserve.http.generation import prompts
from actorserve.http.generation.prepare import ask_chat
from actorserve.http.generation.prompts import chat_prompt, check_messages
from actorserve.http.openai.schemas import ChatRequest
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
