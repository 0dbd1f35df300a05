"""Arguments of LLM's methods that vLLM's scripts give."""

from __future__ import annotations

import time
from typing import Any

import pytest

from actorserve import LLM, EngineArgs, PromptError, SamplingParams
from actorserve.actors.llm.inputs.prompts import Cut
from actorserve.actors.llm.inputs.tokenization import cut_of

SHORT = SamplingParams(temperature=0, max_tokens=3, ignore_eos=True)
TURNS = [{"role": "user", "content": "Hello"}]


def test_an_answer_ends_where_the_model_does(llm: LLM) -> None:
    """As vLLM's: max_tokens is what a script wants at most. With -1 the prompt is cut for all of them instead."""
    [output] = llm.generate(
        [[5] * 4090], SamplingParams(temperature=0, max_tokens=100, ignore_eos=True), use_tqdm=False
    )
    assert len(output.outputs[0].token_ids) == 6 and output.outputs[0].finish_reason == "length"
    cut = SamplingParams(temperature=0, max_tokens=100, ignore_eos=True, truncate_prompt_tokens=-1)
    [output] = llm.generate([[5] * 4090], cut, use_tqdm=False)
    assert (len(output.prompt_token_ids), len(output.outputs[0].token_ids)) == (3996, 100)
    with pytest.raises(PromptError, match="maximum context length"):
        llm.generate([[5] * 4096], SHORT, use_tqdm=False)


def test_one_priority_is_for_all_prompts(llm: LLM) -> None:
    assert len(llm.generate(["a", "b"], SHORT, priority=1, use_tqdm=False)) == 2
    assert len(llm.chat([TURNS, TURNS], SHORT, priority=[0, 1], use_tqdm=False)) == 2
    assert len(llm.chat(TURNS, SHORT, priority=1, use_tqdm=False)) == 1
    llm.enqueue("a", SHORT, priority=2)
    assert len(llm.wait_for_completion()) == 1
    assert len(llm.generate(["a", "b"], SHORT, priority=iter([0, 1]), use_tqdm=False)) == 2  # type: ignore[arg-type]
    for wrong in ([], [1]):
        with pytest.raises(ValueError, match="priorities do not match"):
            llm.generate(["a", "b"], SHORT, priority=wrong)


def test_how_prompts_are_tokenised(llm: LLM) -> None:
    text = "one two three four five six seven"
    [whole] = llm.generate(text, SHORT, use_tqdm=False)

    def ids(**how: Any) -> list[int]:
        return llm.generate(text, SHORT, use_tqdm=False, tokenization_kwargs=how)[0].prompt_token_ids

    assert ids(truncate_prompt_tokens=3) == whole.prompt_token_ids[-3:]
    assert ids(truncation=True, max_length=3, truncation_side="right") == whole.prompt_token_ids[:3]
    assert ids(truncation=False, max_length=3, padding=False, add_special_tokens=False) == whole.prompt_token_ids
    [chat] = llm.chat(TURNS, SHORT, use_tqdm=False, tokenization_kwargs={"truncate_prompt_tokens": 2})
    assert len(chat.prompt_token_ids) == 2
    with pytest.raises(ValueError, match="tokenization_kwargs: nonsense is none of"):
        ids(nonsense=1)


@pytest.mark.parametrize(
    ("how", "cut"),
    [
        ({}, None),
        ({"truncation": True}, Cut(-1)),
        ({"truncation": "longest_first", "max_length": 5}, Cut(5)),
        ({"truncation": "do_not_truncate", "truncate_prompt_tokens": 5}, None),
        ({"truncate_prompt_tokens": -1, "truncation_side": "left"}, Cut(-1, "left")),
    ],
)
def test_what_is_kept(how: dict[str, Any], cut: Cut | None) -> None:
    assert cut_of(how) == cut


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"max_length": 5}, "max_length"),
        ({"truncation": "only_first"}, "truncation is true or false"),
        ({"truncate_prompt_tokens": 0}, "at least 1"),
        ({"truncation": True, "max_length": "5"}, "at least 1"),
        ({"truncation_side": "up"}, "truncation_side is left or right"),
        ({"padding": "max_length"}, "padding"),
    ],
)
def test_what_cannot_be_kept(how: dict[str, Any], why: str) -> None:
    with pytest.raises(ValueError, match=f"tokenization_kwargs: .*{why}"):
        cut_of(how)


def test_when_what_happened(llm: LLM) -> None:
    before = time.time()
    [output] = llm.generate("Hello", SamplingParams(n=2, max_tokens=4, ignore_eos=True), use_tqdm=False)
    told = output.metrics
    assert told is not None and told.num_generation_tokens == 8 and told.num_preemptions == 0
    assert before - 1 <= told.arrival_time <= time.time()
    assert 0 < told.queued_ts <= told.scheduled_ts <= told.first_token_ts <= told.last_token_ts
    assert 0 < told.first_token_latency < 60


def test_conversations_that_are_enqueued(llm: LLM) -> None:
    ids = llm.enqueue_chat([TURNS, TURNS], SHORT, chat_template="{{ messages[0].content }}!", priority=1)
    outputs = llm.wait_for_completion()
    assert [(one.request_id, one.prompt) for one in outputs] == [(own, "Hello!") for own in ids]
    with pytest.raises(TypeError, match="'tool' is no argument"):
        llm.enqueue_chat(TURNS, SHORT, tool=[])  # type: ignore[call-arg]


def test_without_texts_logprobs_have_none(llm: LLM) -> None:
    params = SamplingParams(max_tokens=2, detokenize=False, logprobs=1, prompt_logprobs=1)
    [output] = llm.generate("Hello there", params, use_tqdm=False)
    told = [*(output.prompt_logprobs or [])[1:], *(output.outputs[0].logprobs or [])]
    assert len(told) > 2 and output.outputs[0].text == ""
    assert all(one.decoded_token is None for entries in told for one in (entries or {}).values())


def test_options_may_come_as_an_object() -> None:
    with LLM.from_engine_args(EngineArgs(max_num_seqs=2, worker="scripted", max_model_len=64)) as made:
        assert made.config.max_model_len == 64
