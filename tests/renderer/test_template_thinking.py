"""Where a prompt ends inside a thinking block, and where it only seems to."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.renderer.thinking import opens_thinking

from .templates import ALL
from .templates_conversations import USER
from .test_template import make

ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("text", "opens"),
    [
        ("<think>", True),
        ("x<think>\n", True),
        ("x<think>\n\n \t", True),
        ("<think>a</think>b<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("</think>", False),
        ("", False),
        ("x", False),
        ("what does <think> mean?" + ASSISTANT, False),
        ("what does <think> mean?" + ASSISTANT + "<think>\n", True),
        ("what does </think> mean?" + ASSISTANT + "<think>\n", True),
        ("<think>\nhm", False),
    ],
)
def test_what_a_prompt_leaves_open(text: str, opens: bool) -> None:
    assert opens_thinking(text, "<think>", "</think>") == opens


@pytest.mark.parametrize(
    ("before", "continued", "opens"),
    [
        ("", "<think>\nI wonder", True),
        ("", "<think>\nI wonder</think>\n\nYes", False),
        ("<think>\n", "I wonder", True),
        ("<think>\n", "I wonder</think> so", False),
        ("<think>\n\n</think>\n\n", "Yes", False),
        ("", "Yes", False),
        ("", "a<think>b</think>c<think>d ", True),
        ("<think>\n", "", True),
        ("", "", False),
        ("", " \n<think>", True),
    ],
)
@pytest.mark.parametrize("user", ["Hi", "what does <think> mean?", "and </think>?"])
def test_what_a_continued_message_leaves_open(before: str, continued: str, opens: bool, user: str) -> None:
    for said in (continued, continued.rstrip(), continued.strip()):
        assert opens_thinking(user + ASSISTANT + before + said, "<think>", "</think>", continued) == opens


def test_other_markers() -> None:
    start, end = "<|channel|>analysis<|message|>", "<|end|>"
    assert opens_thinking("x<|end|><|start|>assistant" + start, start, end)
    assert not opens_thinking("x" + start + "hm<|end|><|start|>assistant", start, end)
    assert opens_thinking("[THINK]", "[THINK]", "") and not opens_thinking("x", "", "</think>")


def test_templates_that_open_a_block(tmp_path: Path) -> None:
    for name, thinking, opens in [
        ("nemotron", True, True),
        ("nemotron", False, False),
        ("deepseek_v3_1", True, True),
        ("deepseek_v3_1", False, False),
        ("qwen_3", True, False),
        ("qwen_3", False, False),
        ("glm_45", True, False),
    ]:
        ours = make(ALL[name], tmp_path, bos_token="<s>")
        text = ours.render([USER], variables={"enable_thinking": thinking})
        assert opens_thinking(text, "<think>", "</think>") == opens, name
