"""Prompts have the lengths that are asked for, share what they should, and come from files as they stand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from actorserve.actors.bench.load.prompts import (
    DatasetError,
    Prompt,
    PromptOptions,
    make_prompts,
    prompt_source,
    words_counted,
)


def syllables(text: str) -> int:
    """A tokenizer of a kind: three letters are a token, a blank none."""
    return sum(-(-len(word) // 3) for word in text.split())


def test_random_prompts_have_their_lengths() -> None:
    found = make_prompts(PromptOptions(count=50, input_len=40, output_len=10, range_ratio=0.5), syllables)
    assert all(prompt.tokens == syllables(prompt.text) for prompt in found)
    inputs, outputs = [prompt.tokens for prompt in found], [prompt.output_tokens for prompt in found]
    assert 20 <= min(inputs) < 30 and 50 < max(inputs) <= 60
    assert 5 <= min(outputs) < 8 and 12 < max(outputs) <= 15
    assert len({prompt.text for prompt in found}) == 50


@pytest.mark.parametrize("tokens", [1, 2, 7, 100, 1001])
def test_a_length_is_met_exactly(tokens: int) -> None:
    found = make_prompts(PromptOptions(count=5, input_len=tokens), syllables)
    assert [prompt.tokens for prompt in found] == [tokens] * 5


def test_a_seed_is_a_series() -> None:
    wanted = [make_prompts(PromptOptions(count=3, input_len=9, seed=seed), words_counted) for seed in (1, 1, 2)]
    assert wanted[0] == wanted[1] != wanted[2]


@pytest.mark.parametrize("dataset", ["random", "fixed", "shared-prefix"])
def test_another_run_has_other_words_in_the_same_lengths(dataset: str) -> None:
    wanted = PromptOptions(dataset=dataset, count=4, input_len=9, prefix_len=5, range_ratio=0.5, seed=3)
    runs = [make_prompts(replace(wanted, run=run), words_counted) for run in (0, 0, 1)]
    assert runs[0] == runs[1]
    beginnings = [{prompt.text.split()[0] for prompt in prompts} for prompts in runs]
    assert not beginnings[0] & beginnings[2]
    lengths = [[(prompt.tokens, prompt.output_tokens) for prompt in prompts] for prompts in runs]
    assert lengths[0] == lengths[2]


def test_fixed_prompts_are_one() -> None:
    found = make_prompts(PromptOptions(dataset="fixed", count=4, input_len=9), words_counted)
    assert found == [found[0]] * 4 and found[0].tokens == 9


def test_prefixes_are_shared_in_turn() -> None:
    wanted = PromptOptions(dataset="shared-prefix", count=6, input_len=5, prefix_len=20, prefixes=2)
    found = make_prompts(wanted, words_counted)
    starts = [" ".join(prompt.text.split()[:20]) for prompt in found]
    assert starts[0] != starts[1] and starts == starts[:2] * 3
    assert len({prompt.text for prompt in found}) == 6
    assert {prompt.tokens for prompt in found} == {25}


def test_files_are_read(tmp_path: Path) -> None:
    entries = [
        {"prompt": "one", "output_len": 3},
        {"messages": [{"role": "user", "content": "two"}]},
        {"conversations": [{"from": "human", "value": "three"}, {"from": "gpt", "value": "yes, three"}]},
        {"conversations": [{"from": "human", "value": "nobody answers"}]},
    ]
    lines, array = tmp_path / "a.jsonl", tmp_path / "b.json"
    lines.write_text("\n".join(map(json.dumps, entries)))
    array.write_text(json.dumps(entries))
    for path in (lines, array):
        found = make_prompts(PromptOptions(dataset="file", path=str(path), count=6, output_len=None), words_counted)
        assert sorted(prompt.text for prompt in found) == sorted(["one", "two", "three"] * 2)
        assert Prompt("one", 3) in found and Prompt("three", 2) in found
        assert Prompt("two", 128, messages=[{"role": "user", "content": "two"}]) in found


def test_replies_are_as_long_as_their_file_has_them_or_as_it_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text(json.dumps([{"conversations": [{"value": "a"}, {"value": "b c d"}]}]))
    counted: list[str] = []

    def count(text: str) -> int:
        counted.append(text)
        return words_counted(text)

    take = prompt_source(PromptOptions(dataset="file", path=str(path), output_len=None), count)
    assert take(2, 0) == take(2, 1) == [Prompt("a", 3)] * 2 and counted == ["b c d"]
    assert prompt_source(PromptOptions(dataset="file", path=str(path), output_len=7), count)(1, 0) == [Prompt("a", 7)]


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", "3", '{"text": "x"}', '{"prompt": "a", "output_len": "x"}', '{"prompt": "a", "max_tokens": -1}']
    + ['{"conversations": ["a", "b"]}', '{"conversations": [{"value": 5}, {"value": "a"}]}', '{"messages": ["a"]}'],
)
def test_a_file_without_prompts_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(text)
    with pytest.raises(DatasetError, match=r"a\.jsonl"):
        make_prompts(PromptOptions(dataset="file", path=str(path)), words_counted)
