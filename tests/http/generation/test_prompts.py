"""What chat templates are given."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actorserve.http.generation.prompts import chat_prompt
from actorserve.http.openai.schemas import ChatRequest
from tests.http.serving import HI, SETTINGS


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({}, {"enable_thinking": True, "style": "short"}),
        ({"chat_template_kwargs": {"style": "long"}}, {"enable_thinking": True, "style": "long"}),
        ({"reasoning_effort": "none"}, {"enable_thinking": False, "style": "short", "reasoning_effort": "none"}),
    ],
)
def test_a_request_says_more_than_the_option(asked: dict[str, Any], given: dict[str, Any]) -> None:
    settings = replace(SETTINGS, template_kwargs={"enable_thinking": True, "style": "short"})
    request = msgspec.json.decode(json.dumps({"messages": HI, **asked}), type=ChatRequest)
    assert json.loads(chat_prompt(request, settings).template_kwargs or b"") == given
