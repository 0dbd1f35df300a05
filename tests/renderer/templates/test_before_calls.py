"""An assistant that has thought and spoken before it called tools, for a template that takes one of the two."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.renderer.templates.problem import Declined

from .conversations import USER, call, calls, result
from .templates import ALL
from .test_chat_template import make

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
