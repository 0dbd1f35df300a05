"""Where a prompt ends inside a thinking block, and where it only seems to."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.renderer.reasoning_state import left_thinking

from ..made import make
from .conversations import USER
from .templates import ALL

ASSISTANT = "<|im_end|>\n<|im_start|>assistant\n"


@pytest.mark.parametrize(
    ("text", "left"),
    [
        ("<think>", True),
        ("x<think>\n", True),
        ("x<think>\n\n \t", True),
        ("<think>a</think>b<think>\n", True),
        ("<think>\n\n</think>\n\n", False),
        ("<｜Assistant｜></think>", False),
        ("<｜Assistant｜><think></think>", False),
        ("<think>a</think>", False),
        ("", None),
        ("x", None),
        ("<think>a</think>b", None),
        ("what does <think> mean?" + ASSISTANT, None),
        ("what does </think> mean? </think>" + ASSISTANT, None),
        ("what does <think> mean?" + ASSISTANT + "<think>\n", True),
        ("what does </think> mean?" + ASSISTANT + "<think>\n", True),
        ("what does <think> mean?" + ASSISTANT + "<think>\n</think>", False),
        ("<think>\nhm", None),
    ],
)
def test_what_a_prompt_leaves_open(text: str, left: bool | None) -> None:
    """None: it is the model's matter whether it thinks."""
    assert left_thinking(text, "<think>", "</think>") is left


@pytest.mark.parametrize(
    ("before", "continued", "opens"),
    [
        ("", "<think>\nI wonder", True),
        ("", "<think>\nI wonder</think>\n\nYes", False),
        ("<think>\n", "I wonder", True),
        ("<think>\n", "I wonder</think> so", False),
        ("<think>\n\n</think>\n\n", "Yes", False),
        ("", "Yes", None),
        ("", "a<think>b</think>c<think>d ", True),
        ("<think>\n", "", True),
        ("", "", None),
        ("", " \n<think>", True),
    ],
)
@pytest.mark.parametrize("user", ["Hi", "what does <think> mean?", "and </think>?"])
def test_what_a_continued_message_leaves_open(before: str, continued: str, opens: bool | None, user: str) -> None:
    for said in (continued, continued.rstrip(), continued.strip()):
        assert left_thinking(user + ASSISTANT + before + said, "<think>", "</think>", continued) is opens


def test_other_markers() -> None:
    start, end = "<|channel|>analysis", "<|channel|>final"
    begun = "<|start|>assistant"
    assert left_thinking(f"x<|end|>{begun}{start}<|message|>", start, end) is True
    assert left_thinking(f"x{start}<|message|>hm<|end|>{begun}", start, end) is None
    before = f"{begun}{start}<|message|>hm<|end|>{begun}{end}<|message|>"
    assert left_thinking(f"{before}4, of", start, end, "4, of") is False
    assert left_thinking(f"{before}4<|end|>{begun}", start, end) is None
    assert left_thinking("[THINK]", "[THINK]", "") is True and left_thinking("x", "", "</think>") is None


def test_templates_that_open_a_block(tmp_path: Path) -> None:
    for name, thinking, opens in [
        ("nemotron", True, True),
        ("nemotron", False, False),
        ("deepseek_v3_1", True, True),
        ("deepseek_v3_1", False, False),
        ("qwen_3", True, None),
        ("qwen_3", False, False),
        ("glm_45", True, None),
    ]:
        ours = make(ALL[name], tmp_path, bos_token="<s>")
        text = ours.render([USER], variables={"enable_thinking": thinking})
        assert left_thinking(text, "<think>", "</think>") is opens, name
