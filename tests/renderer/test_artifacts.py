"""What a renderer makes of a request's parameters."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actorserve.actors.grammar.compiler import GrammarError, unpack
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.protocol.messages import Render
from actorserve.actors.protocol.request import Rendition, Think
from actorserve.actors.protocol.topics.prompts import ChatPrompt, TextPrompt
from actorserve.actors.renderer.artifacts import Renditions
from tests.support.models.tokenizers_made import byte_level

TOKENIZER = byte_level()
MODEL = ModelInfo(
    folder="/none",
    tokenizer_folder="/none",
    architecture="LlamaForCausalLM",
    vocab_size=TOKENIZER.get_vocab_size(),
    max_model_len=64,
    end_tokens=[TOKENIZER.token_to_id("</s>") or 0],
    sampling_defaults={},
)
THINK = Think("<think>", "</think>")
ALWAYS = Think("<think>", "</think>", always=True)
CHAT = ChatPrompt(json.dumps([{"role": "user", "content": "hi"}]).encode())


@pytest.fixture(scope="module")
def renditions() -> Renditions:
    return Renditions(TOKENIZER, MODEL, 48 << 10)


def make(renditions: Renditions, text: str | None = "prompt", prompt: Any = CHAT, **fields: Any) -> Rendition:
    packed = renditions.make(Render([1], prompt, **fields), text)
    return msgspec.msgpack.decode(packed, type=Rendition) if packed else Rendition()


def test_a_plain_request_leaves_nothing(renditions: Renditions) -> None:
    assert renditions.make(Render([1], TextPrompt("a")), None) == b""
    assert renditions.make(Render([1], CHAT, think=THINK), "no thinking here") == b""


def test_bad_words_are_spelled_at_a_beginning_and_behind_a_space(renditions: Renditions) -> None:
    def ids(text: str) -> list[int]:
        found: list[int] = TOKENIZER.encode(text, add_special_tokens=False).ids
        return found

    made = make(renditions, bad_words=["word", " word"])
    assert made.bad_words == [ids("word"), ids(" word"), ids(" word")]


def test_bad_words_that_the_model_never_draws_are_none() -> None:
    """Its tokenizer knows more tokens than the model has rows."""
    last = TOKENIZER.id_to_token(MODEL.vocab_size - 1) or ""
    fewer = Renditions(TOKENIZER, msgspec.structs.replace(MODEL, vocab_size=MODEL.vocab_size - 1), 48 << 10)
    assert TOKENIZER.encode(last, add_special_tokens=False).ids == [MODEL.vocab_size - 1]
    assert fewer.make(Render([1], CHAT, bad_words=[last]), None) == b""


@pytest.mark.parametrize(
    ("text", "think", "opened"),
    [
        ("assistant\n<think>\n", THINK, True),
        ("assistant\n<think>\n\n</think>\n\n", THINK, False),
        ("assistant\n", THINK, False),
        ("assistant\n", ALWAYS, True),
        ("assistant\n<think>\n", ALWAYS, True),
        ("<｜Assistant｜></think>", ALWAYS, False),
        ("<｜Assistant｜><think></think>", ALWAYS, False),
        ("<think>", None, False),
    ],
)
def test_does_the_prompt_open_the_thinking(
    renditions: Renditions, text: str, think: Think | None, opened: bool
) -> None:
    assert make(renditions, text, think=think).opened is opened


def test_a_continued_message_that_thinks(renditions: Renditions) -> None:
    cases = (
        ("<think>so far", THINK, True),
        ("<think>so</think>far", THINK, False),
        ("<think>a</think>b", ALWAYS, False),
    )
    for content, think, opened in cases:
        messages = json.dumps([{"role": "assistant", "content": content}]).encode()
        prompt = ChatPrompt(messages, add_generation_prompt=False, continue_final_message=True)
        assert make(renditions, f"assistant\n{content}", prompt, think=think).opened is opened


def test_a_budget_has_its_marks_as_tokens(renditions: Renditions) -> None:
    budget = make(renditions, think=THINK, thinking_budget=7).budget
    assert budget is not None and budget.tokens == 7
    assert TOKENIZER.decode(budget.start) == "<think>" and TOKENIZER.decode(budget.end) == "</think>"
    assert budget.closing == []


@pytest.mark.parametrize("closing", ["Enough.", "Enough.</think>", "Enough.</think>\n"])
def test_what_closes_thinking_ends_with_its_mark(renditions: Renditions, closing: str) -> None:
    think = msgspec.structs.replace(THINK, closing=closing)
    budget = make(renditions, think=think, thinking_budget=7).budget
    assert budget is not None and TOKENIZER.decode(budget.closing) == "Enough.</think>"
    assert budget.closing[-len(budget.end) :] == budget.end


@pytest.mark.parametrize(
    ("text", "think", "waits", "may_begin"),
    [
        ("a", None, False, False),
        ("a", THINK, True, True),
        ("a<think>\n", THINK, True, False),
        ("a<think></think>\n", THINK, False, False),
        ("a", ALWAYS, True, False),
        ("a</think>", ALWAYS, False, False),
    ],
)
def test_grammars_hold_behind_the_thinking(
    renditions: Renditions, text: str, think: Think | None, waits: bool, may_begin: bool
) -> None:
    grammar = unpack(make(renditions, text, think=think, constraint=b'{"choice": ["yes", "no"]}').grammar)
    assert ("think" in grammar or "x{3C}" in grammar) is waits and ("<think>" in grammar) is may_begin


def test_a_wish_that_cannot_be(renditions: Renditions) -> None:
    with pytest.raises(GrammarError, match=r"regex|regular"):
        make(renditions, constraint=b'{"regex": "(("}')
    with pytest.raises(GrammarError, match="bytes"):
        make(Renditions(TOKENIZER, MODEL, 64), bad_words=["a long word"] * 20)
