"""`generate`, `chat` and `enqueue`: what comes back is what transformers and the HTTP server say, in order."""

from __future__ import annotations

import asyncio
import gc
import json
import math
import pickle
import re
import threading
from typing import Any

import openai
import pytest
import torch
from transformers import AutoModelForCausalLM

from actorserve import LLM, BeamSearchParams, PromptError, RequestOutput, SamplingParams, StructuredOutputsParams
from actorserve.actors.model.info import DEMO_FOLDER
from tests.support.server import Server

GREEDY = SamplingParams(temperature=0, max_tokens=24)
PROMPTS = ["One and one is", "What is the capital of France?", "Hello", "The quick brown fox", "Grüße aus"]


def texts(outputs: list[RequestOutput]) -> list[str]:
    return [one.text for output in outputs for one in output.outputs]


def generate(llm: LLM, prompts: Any, params: Any = GREEDY) -> list[RequestOutput]:
    return llm.generate(prompts, params, use_tqdm=False)


def test_greedy_tokens_are_those_of_transformers(llm: LLM) -> None:
    model: Any = AutoModelForCausalLM.from_pretrained(DEMO_FOLDER, dtype=torch.float32)
    for output in generate(llm, PROMPTS):
        ids = torch.tensor([output.prompt_token_ids])
        with torch.inference_mode():
            expected = model.generate(ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=24)
        assert output.outputs[0].token_ids == expected[0, ids.shape[1] :].tolist()
        assert output.prompt_logprobs is None and output.outputs[0].logprobs is None


def test_text_logprobs_and_chat_are_those_of_the_http_server(llm: LLM, demo_server: Server) -> None:
    client = openai.OpenAI(base_url=f"{demo_server.base_url}/v1", api_key="none")
    params = SamplingParams(temperature=0.7, seed=5, max_tokens=12, logprobs=3)
    ours = generate(llm, PROMPTS, params)
    for prompt, output in zip(PROMPTS, ours, strict=True):
        theirs = client.completions.create(
            model="",
            prompt=prompt,
            temperature=0.7,
            seed=5,
            max_tokens=12,
            logprobs=3,
            top_p=1,
            extra_body={"top_k": 0},
        ).choices[0]
        one = output.outputs[0]
        assert (one.text, one.finish_reason) == (theirs.text, theirs.finish_reason)
        assert theirs.logprobs and theirs.logprobs.token_logprobs and one.logprobs
        own = [entries[token].logprob for entries, token in zip(one.logprobs, one.token_ids, strict=True)]
        assert own == pytest.approx(theirs.logprobs.token_logprobs, abs=1e-3)
        assert one.cumulative_logprob == pytest.approx(sum(own))
    conversation = [{"role": "user", "content": "What is the capital of France?"}]
    [said] = llm.chat(conversation, GREEDY, use_tqdm=False)
    messages: Any = conversation
    answer = client.chat.completions.create(model="", messages=messages, temperature=0, max_tokens=24)
    assert said.outputs[0].text == answer.choices[0].message.content
    assert said.prompt is not None and said.prompt.endswith("<|im_start|>assistant\n")


def test_more_prompts_than_run_at_once_come_in_order_with_their_own_parameters(llm: LLM) -> None:
    prompts = [f"Number {index} is" for index in range(60)]
    params = [SamplingParams(temperature=0, max_tokens=1 + index % 7, ignore_eos=True) for index in range(60)]
    outputs = generate(llm, prompts, params)
    assert [output.prompt for output in outputs] == prompts
    assert [len(output.outputs[0].token_ids) for output in outputs] == [1 + index % 7 for index in range(60)]
    assert len({output.request_id for output in outputs}) == 60
    assert all(output.outputs[0].finish_reason == "length" and output.finished for output in outputs)


def test_all_forms_of_a_prompt_are_the_same(llm: LLM) -> None:
    [plain] = generate(llm, "Hello")
    ids = plain.prompt_token_ids
    for form in (["Hello"], {"prompt": "Hello"}, ids, [ids], {"prompt_token_ids": ids}, [{"prompt_token_ids": ids}]):
        [output] = generate(llm, form)
        assert output.outputs[0].token_ids == plain.outputs[0].token_ids
        assert output.prompt_token_ids == ids
    assert generate(llm, []) == []


def test_several_answers_seeds_and_the_best_of_them(llm: LLM) -> None:
    params = SamplingParams(n=3, temperature=1.0, seed=11, max_tokens=10, logprobs=0)
    [first], [second] = generate(llm, "Hello", params), generate(llm, "Hello", params)
    assert texts([first]) == texts([second]) and len(set(texts([first]))) > 1
    assert [one.index for one in first.outputs] == [0, 1, 2]
    [other] = generate(llm, "Hello", SamplingParams(n=3, seed=12, max_tokens=10))
    assert texts([other]) != texts([first])
    [best] = generate(llm, "Hello", SamplingParams(n=1, best_of=3, seed=11, max_tokens=10))
    likeliest = max(first.outputs, key=lambda one: (one.cumulative_logprob or 0) / len(one.token_ids))
    assert best.outputs[0].text == likeliest.text and best.outputs[0].logprobs is None


def test_listed_tokens_are_told_beside_the_drawn_one(llm: LLM) -> None:
    ranked, listed = (
        generate(llm, PROMPTS[1], SamplingParams(temperature=0, max_tokens=3, **asked))[0].outputs[0]
        for asked in ({"logprobs": 20}, {"logprob_token_ids": [300, 5]})
    )
    assert ranked.logprobs and listed.logprobs and ranked.token_ids == listed.token_ids
    for token, best, told in zip(listed.token_ids, ranked.logprobs, listed.logprobs, strict=True):
        assert list(told) == [token, 300, 5] and told[token] == best[token]
        assert told[300].rank is None and all(told[word] == best[word] for word in told if word in best)
    with pytest.raises(ValueError, match="logprob_token_ids takes at most 128"):
        SamplingParams(logprob_token_ids=[1] * 129)


def test_as_many_logprobs_as_it_was_made_for(llm: LLM) -> None:
    """max_logprobs."""
    params = SamplingParams(temperature=0, max_tokens=2, logprobs=64, prompt_logprobs=50)
    (output,) = generate(llm, "Hello", params)
    assert output.outputs[0].logprobs is not None and output.prompt_logprobs is not None
    assert [len(one) for one in output.outputs[0].logprobs] == [64, 64]
    assert all(one is not None and len(one) in (50, 51) for one in output.prompt_logprobs[1:])
    for asked in (65, -1):
        with pytest.raises(ValueError, match=r"logprobs must be at most 64 \(--max-logprobs\)"):
            generate(llm, "Hello", SamplingParams(logprobs=asked))


def test_prompt_logprobs_begin_with_none(llm: LLM) -> None:
    [output] = generate(llm, PROMPTS[1], SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=2))
    assert output.prompt_logprobs is not None and output.prompt_logprobs[0] is None
    for entries, token in list(zip(output.prompt_logprobs, output.prompt_token_ids, strict=True))[1:]:
        assert entries is not None and entries[token].rank and 2 <= len(entries) <= 3
        assert all(math.isfinite(entry.logprob) for entry in entries.values())


def test_stop_strings_words_and_lengths(llm: LLM) -> None:
    [whole] = generate(llm, "What is the capital of France?")
    text = whole.outputs[0].text
    assert " capital" in text
    [stopped] = generate(llm, PROMPTS[1], SamplingParams(temperature=0, max_tokens=24, stop=[" capital"]))
    assert stopped.outputs[0].text == text.partition(" capital")[0]
    assert (stopped.outputs[0].finish_reason, stopped.outputs[0].stop_reason) == ("stop", " capital")
    token = whole.outputs[0].token_ids[3]
    [at_token] = generate(llm, PROMPTS[1], SamplingParams(temperature=0, max_tokens=24, stop_token_ids=[token]))
    assert at_token.outputs[0].stop_reason == token
    [silent] = generate(llm, "Hello", SamplingParams(temperature=0, detokenize=False))
    assert silent.outputs[0].text == "" and len(silent.outputs[0].token_ids) == 16
    allowed = SamplingParams(temperature=1, max_tokens=8, allowed_token_ids=[40, 41], ignore_eos=True)
    assert set(generate(llm, "Hello", allowed)[0].outputs[0].token_ids) <= {40, 41}
    [long] = generate(llm, [5] * 3995, SamplingParams(temperature=0, max_tokens=None, ignore_eos=True))
    assert len(long.outputs[0].token_ids) == 4096 - 3995


def test_beams_are_those_of_the_http_server(llm: LLM, demo_server: Server) -> None:
    client = openai.OpenAI(base_url=f"{demo_server.base_url}/v1", api_key="none")
    found = llm.beam_search(PROMPTS[:2], BeamSearchParams(beam_width=3, max_tokens=6))
    for prompt, output in zip(PROMPTS, found, strict=False):
        extra = {"use_beam_search": True}
        theirs = client.completions.create(model="", prompt=prompt, n=3, max_tokens=6, extra_body=extra)
        answers = [re.sub(r"<\|.*?\|>", "", one.text.removeprefix(prompt)) for one in output.sequences]
        assert answers == [one.text for one in theirs.choices]
        assert [one.finish_reason for one in output.sequences] == [one.finish_reason for one in theirs.choices]
        assert len(output.sequences) == 3 and all(one.cum_logprob <= 0 for one in output.sequences)
    for wrong, name in (
        ({"beam_width": 0}, "beam_width"),
        ({"beam_width": 11}, "beam_width"),
        ({"temperature": 1}, "temp"),
    ):
        with pytest.raises(ValueError, match=name):
            llm.beam_search("Hello", BeamSearchParams(**{"beam_width": 2, "max_tokens": 4, **wrong}))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="context length"):
        llm.beam_search("Hello", BeamSearchParams(beam_width=2, max_tokens=100_000))


def test_structured_output(llm: LLM) -> None:
    schema = {
        "type": "object",
        "properties": {"n": {"type": "integer"}},
        "required": ["n"],
        "additionalProperties": False,
    }
    wishes: list[Any] = [
        {"regex": "[0-9]{3}-[a-c]{2}"},
        StructuredOutputsParams(choice=["yes", "no"]),
        {"json": schema},
        {"grammar": 'root ::= "ab" "cd"'},
    ]
    params = [SamplingParams(max_tokens=64, structured_outputs=wish, temperature=0) for wish in wishes]
    regex, choice, made, grammar = texts(generate(llm, ["Say:"] * 4, params))
    assert re.fullmatch("[0-9]{3}-[a-c]{2}", regex)
    assert choice in ("yes", "no") and grammar == "abcd"
    assert isinstance(json.loads(made)["n"], int)


def test_several_conversations_and_a_begun_answer(llm: LLM) -> None:
    conversations = [[{"role": "user", "content": f"What is {word}?"}] for word in ("Paris", "one and one")]
    both = llm.chat(conversations, GREEDY, use_tqdm=False)
    assert texts(both) == [texts(llm.chat(one, GREEDY, use_tqdm=False))[0] for one in conversations]
    begun = [*conversations[0], {"role": "assistant", "content": "The capital"}]
    [output] = llm.chat(begun, GREEDY, use_tqdm=False, add_generation_prompt=False, continue_final_message=True)
    assert output.prompt is not None and output.prompt.endswith("The capital")
    [own] = llm.chat(conversations[0], GREEDY, use_tqdm=False, chat_template="{{ messages[0].content }}!")
    assert own.prompt == "What is Paris?!"
    with pytest.raises(ValueError, match=r"conversation 1: messages\[0\].role"):
        llm.chat([conversations[0], [{"role": "", "content": "x"}]], use_tqdm=False)


def test_enqueued_prompts_are_waited_for(llm: LLM) -> None:
    ids = llm.enqueue(PROMPTS[:2], GREEDY) + llm.enqueue("Hello", GREEDY)
    outputs = llm.wait_for_completion()
    assert [output.request_id for output in outputs] == ids
    assert texts(outputs) == texts(generate(llm, PROMPTS[:3]))
    assert llm.wait_for_completion() == []
    llm.enqueue("Hello", SamplingParams(max_tokens=120, ignore_eos=True))
    with pytest.raises(TimeoutError, match="1 prompts have not ended"):
        llm.wait_for_completion(timeout=0)
    assert len(llm.wait_for_completion()[0].outputs[0].token_ids) == 120


def test_a_grammar_that_fails_on_the_way_is_no_output(llm: LLM) -> None:
    """Others are finished, and neither they nor the next with the same grammar are cut."""
    endless = {"grammar": 'start: z{40} b{0,50} b{0,50}\nz: "zq"\nb: A b | "" | b b\nA: /a/'}
    long = SamplingParams(temperature=0, max_tokens=500, min_tokens=400, structured_outputs=endless)
    short = SamplingParams(temperature=0, max_tokens=80, structured_outputs=endless)
    with pytest.raises(PromptError, match="prompt 0: structured_outputs: its grammar became too complex") as caught:
        generate(llm, ["Say:"] * 2, [long, short])
    others = [output for output in caught.value.outputs if output is not None]
    assert list(caught.value.errors) == [0] and texts(others) == ["zq" * 40]
    assert texts(generate(llm, ["Say:"], [short])) == ["zq" * 40]


def test_a_prompt_that_cannot_be_answered_does_not_harm_the_others(llm: LLM) -> None:
    params = [GREEDY, GREEDY, SamplingParams(structured_outputs={"regex": "("}), GREEDY]
    with pytest.raises(PromptError, match="prompt 1: This model's maximum context length") as caught:
        generate(llm, ["Hello", "word " * 5000, "x", "Hello"], params)
    error = caught.value
    assert isinstance(error, ValueError) and error.index == 1 and sorted(error.errors) == [1, 2]
    assert error.outputs[1] is None and error.outputs[2] is None
    good = [output for output in error.outputs if output is not None]
    assert texts(good) == texts(generate(llm, ["Hello"])) * 2


def test_such_an_error_may_come_from_another_process() -> None:
    error = PromptError({1: "too long"}, [None, None])
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is PromptError and str(again) == str(error)
    assert (again.index, again.errors, again.outputs) == (1, error.errors, error.outputs)


def test_a_salt_keeps_a_prefix_to_itself(llm: LLM) -> None:
    prompt = "A prefix of its own, longer than a block of the cache, and said by nobody else. " * 4

    def cached(**fields: Any) -> int:
        [output] = generate(llm, {"prompt": prompt, **fields})
        return output.num_cached_tokens

    assert cached(type="text") == 0 and cached() > 0
    assert cached(cache_salt="a") == 0 and cached(cache_salt="a", multi_modal_uuids=None) > 0
    assert cached(cache_salt="b") == 0


def test_what_can_be_seen_before_is_refused_at_once(llm: LLM) -> None:
    for prompts, match in (
        (["a", 5], "prompt 1: a prompt must be a text"),
        (["a", {"text": "b"}], "prompt 1: text is none of prompt, prompt_token_ids"),
        (["a", {"prompt": "b", "mm_processor_kwargs": {"min_pixels": 1}}], "prompt 1: mm_processor_kwargs is none of"),
        (["a", {"prompt": "b", "cache_salt": 5}], "prompt 1: cache_salt is a text"),
        (["a", [1, -2]], "prompt 1: token ids are between"),
        (["a", "x" * (5 << 20)], "prompt 1: The prompt and its parameters have"),
    ):
        with pytest.raises(ValueError, match=match):
            generate(llm, prompts)
    with pytest.raises(ValueError, match="2 prompts, 1 sampling_params"):
        generate(llm, ["a", "b"], [GREEDY])
    changed = SamplingParams()
    changed.top_p = 7
    with pytest.raises(ValueError, match="prompt 0: top_p"):
        generate(llm, ["a"], changed)
    with pytest.raises(ValueError, match="prompt 0: stop_token_ids takes"):
        generate(llm, ["a"], SamplingParams(stop_token_ids=[1 << 20]))


def test_threads_share_it(llm: LLM) -> None:
    alone = texts(generate(llm, PROMPTS))
    found: dict[int, list[str]] = {}
    threads = [
        threading.Thread(target=lambda at=at: found.update({at: texts(generate(llm, PROMPTS))})) for at in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == dict.fromkeys(range(4), alone)


async def test_it_works_where_a_loop_runs_already(llm: LLM) -> None:
    assert asyncio.get_running_loop().is_running()
    assert texts(generate(llm, "Hello")) == texts(await asyncio.to_thread(generate, llm, "Hello"))


def test_the_bar_counts_prompts_and_tokens(llm: LLM) -> None:
    made: list[Bar] = []

    class Bar:
        def __init__(self, total: int, **options: Any) -> None:
            self.total, self.count, self.said, self.closed = total, 0, "", False
            made.append(self)

        def update(self, count: int) -> None:
            self.count += count

        def set_postfix_str(self, text: str, refresh: bool) -> None:
            self.said = text

        def close(self) -> None:
            self.closed = True

    llm.generate(PROMPTS, GREEDY, use_tqdm=Bar)
    [bar] = made
    assert (bar.total, bar.count, bar.closed) == (5, 5, True)
    assert re.fullmatch(r"input: [\d.]+ tokens/s, output: [\d.]+ tokens/s", bar.said)


def test_the_tokenizer_is_the_models_own(llm: LLM) -> None:
    [output] = generate(llm, "Hello, how are you?")
    assert llm.get_tokenizer().encode("Hello, how are you?") == output.prompt_token_ids
    assert llm.get_tokenizer() is llm.get_tokenizer()
    gc.collect()


def test_the_prefix_cache_is_reset(llm: LLM) -> None:
    assert llm.reset_prefix_cache(reset_connector=True) is True
    assert llm.reset_prefix_cache(reset_running_requests=True) is True
