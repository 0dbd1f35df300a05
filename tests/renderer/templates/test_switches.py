"""Thinking by the names that Kimi K3's and MiniMax M3's templates have for it, and of a model that always thinks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ..made import make
from .conversations import USER

K3 = """{%- if thinking is undefined -%}{%- set thinking = true -%}{%- endif -%}
{%- if thinking_effort is undefined -%}{%- set thinking_effort = 'max' -%}{%- endif -%}
{%- if thinking and thinking_effort not in ['low', 'high', 'max'] -%}
{{- raise_exception('Unsupported thinking_effort=' + thinking_effort|string) -}}{%- endif -%}
{%- if thinking -%}{{ thinking_effort }}{%- endif -%}{{ messages[0].content }}"""
M3 = """{%- if thinking_mode is defined and thinking_mode == "disabled" -%}off
{%- elif thinking_mode is defined and thinking_mode == "enabled" -%}on{%- else -%}adaptive{%- endif -%}
{{- messages[0].content }}"""
ALWAYS = """{{ reasoning_effort | default("medium") }}{{ messages[0].content }}"""
MISTRAL = """{%- if reasoning_effort not in ["none", "high"] -%}{{- raise_exception("which?") -}}{%- endif -%}
{{- reasoning_effort }}{{ messages[0].content }}"""
OTHER_WORDS = """{{ thinking_mode | default("chat") }}{{ messages[0].content }}"""
OFF = {"enable_thinking": False, "thinking": False}


@pytest.mark.parametrize(
    ("template", "variables", "begins"),
    [
        (K3, {}, "max"),
        (K3, {"reasoning_effort": "low"}, "low"),
        (K3, {"reasoning_effort": "minimal"}, "low"),
        (K3, {"reasoning_effort": "medium"}, "high"),
        (K3, {"reasoning_effort": "xhigh"}, "max"),
        (K3, {"reasoning_effort": "low", "thinking_effort": "high"}, "high"),
        (K3, {"reasoning_effort": "none", **OFF}, ""),
        (M3, {}, "adaptive"),
        (M3, {"enable_thinking": True, "thinking": True}, "on"),
        (M3, OFF, "off"),
        (M3, {"thinking": False}, "off"),
        (M3, {"thinking": False, "thinking_mode": "enabled"}, "on"),
        (M3, {"reasoning_effort": "low"}, "adaptive"),
        (OTHER_WORDS, OFF, "chat"),
        (ALWAYS, {}, "medium"),
        (ALWAYS, OFF, "low"),
        (ALWAYS, {"reasoning_effort": "high", **OFF}, "high"),
        (ALWAYS, {"reasoning_effort": "none"}, "low"),
        (ALWAYS, {"reasoning_effort": "high"}, "high"),
        (MISTRAL, {"reasoning_effort": "none", **OFF}, "none"),
    ],
)
def test_a_template_is_told_by_its_own_names(
    template: str, variables: dict[str, Any], begins: str, tmp_path: Path
) -> None:
    assert make(template, tmp_path).render([USER], variables=variables) == begins + USER["content"]
