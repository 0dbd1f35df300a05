"""Texts that are far too long: refused by their beginning, and only where all of them would be refused, too."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Encoding, Tokenizer

from actorserve.actors.protocol.messages import Failed, Rendered
from actorserve.actors.protocol.topics.calls import Tokenize
from actorserve.actors.protocol.topics.prompts import ChatPrompt, Prompt, TextPrompt
from actorserve.actors.renderer import oversized as giants
from actorserve.actors.renderer.oversized import LEAST, least_tokens
from tests.support.models.tokenizers_made import CORPUS, byte_fallback, byte_level, metaspace, unigram_bytes, word_piece

from .test_actor import Bench

MADE = [byte_level, byte_fallback, metaspace, unigram_bytes, word_piece]
SHORT = "Say it again. "
PIECES = st.sampled_from(
    [*CORPUS, " ", "\n", "a", "aaaa", "<|im_end|>", "naïve word", "é", "e\u0301", "你好", "🙂", "1234"]
)


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.memory.close()


def chat(text: str) -> ChatPrompt:
    return ChatPrompt(json.dumps([{"role": "user", "content": text}]).encode())


@pytest.mark.parametrize(
    ("prompt", "field"), [(TextPrompt(SHORT * 30_000), "prompt"), (chat(SHORT * 30_000), "messages")]
)
def test_nobody_tokenises_all_of_it(bench: Bench, monkeypatch: pytest.MonkeyPatch, prompt: Prompt, field: str) -> None:
    monkeypatch.setattr(bench.renderer.prompts, "_text_tokens", None)
    answer = bench.render(prompt)
    assert isinstance(answer, Failed) and (answer.status, answer.param) == (400, field)
    assert answer.code == "context_length_exceeded" and answer.lengths is not None
    assert answer.lengths[0] > answer.lengths[1] == 64
    assert answer.message.startswith("This model's maximum context length is 64 tokens. However, your prompt has at le")


@pytest.mark.parametrize(("make", "field"), [(TextPrompt, "prompt"), (chat, "messages")])
@pytest.mark.parametrize("how", ["is counted", "is cut", "is cut behind"])
def test_also_where_it_is_cut_or_only_counted(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, make: Callable[[str], Prompt], field: str, how: str
) -> None:
    prompt = make(SHORT * 30_000)
    monkeypatch.setattr(bench.renderer.prompts, "_text_tokens", None)
    if how == "is counted":
        (answer,) = bench.ask(Tokenize(7, prompt))
        assert answer.call == 7
    else:
        answer = bench.render(prompt, truncate_prompt_tokens=9, keep_first=how == "is cut behind")
    assert isinstance(answer, Failed)
    assert (answer.status, answer.param, answer.code) == (400, field, "context_length_exceeded")


@pytest.mark.parametrize("keep_first", [False, True])
def test_what_is_to_be_cut_is_tokenised(bench: Bench, keep_first: bool) -> None:
    text = "one " + SHORT * 15_000 + "two"
    answer = bench.render(TextPrompt(text), truncate_prompt_tokens=9, keep_first=keep_first)
    assert isinstance(answer, Rendered)
    expected = byte_level().encode(text, add_special_tokens=False).ids
    given_ids = list(bench.table.token_ids(answer.refs[0], 0, 9))
    assert given_ids == (expected[:9] if keep_first else expected[-9:])


def test_of_others_the_number_is_told(bench: Bench) -> None:
    text = SHORT * (LEAST // len(SHORT))
    count = len(byte_level().encode(text, add_special_tokens=False).ids)
    assert f"has {count} tokens" in bench.render(TextPrompt(text)).message
    assert "has at least" in bench.render(TextPrompt(text + SHORT * 2)).message


@pytest.mark.parametrize("make", MADE)
@given(parts=st.lists(PIECES, min_size=1, max_size=8), longest=st.integers(1, 400))
@settings(max_examples=20)
def test_no_text_has_fewer_tokens_than_it_is_said_to_have(
    make: Callable[[], Tokenizer], parts: list[str], longest: int
) -> None:
    text = "".join(parts)
    text *= 1 + 20_000 // len(text)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(giants, "LEAST", 0)
        patched.setattr(giants, "PART", 1 << 10)
        least = least_tokens(make(), text, longest)
    assert least == 0 or longest <= least <= len(make().encode(text, add_special_tokens=False).ids)


@pytest.mark.parametrize("letters", [1, 99, 100, 101])
def test_a_cut_word_counts_for_more_than_the_whole_one(monkeypatch: pytest.MonkeyPatch, letters: int) -> None:
    monkeypatch.setattr(giants, "LEAST", 0)
    longest = 1000
    text = ("a " * (longest - 2)).ljust(giants.PART - letters) + "a" * (giants.PART + letters)
    count = len(word_piece().encode(text, add_special_tokens=False).ids)
    assert count < longest and least_tokens(word_piece(), text, longest) == 0


@pytest.mark.parametrize("make", MADE)
def test_ordinary_text_is_known_by_its_parts(make: Callable[[], Tokenizer]) -> None:
    text = "\n".join(CORPUS)
    text *= 1 + LEAST // len(text)
    assert least_tokens(make(), text, 1000) >= 1000
    assert least_tokens(make(), text, -(-len(text) // 2)) == 0, "it is not that much longer"


class Counting:
    """A tokenizer that says how many characters it was asked for."""

    def __init__(self) -> None:
        self.asked = 0

    def encode(self, text: str, add_special_tokens: bool) -> Encoding:
        self.asked += len(text)
        return byte_level().encode(text, add_special_tokens=add_special_tokens)


@pytest.mark.parametrize(("before", "parts"), [("", 1), ("<|im_end|>" * 15_000, 3)])
def test_no_more_of_it_is_looked_at_than_needed(before: str, parts: int) -> None:
    """Also where it begins with what has few tokens for its length."""
    counting: Any = Counting()
    assert least_tokens(counting, before + "\U0001f642" * (1 << 20), 20_000) >= 20_000
    assert counting.asked == parts * giants.PART
