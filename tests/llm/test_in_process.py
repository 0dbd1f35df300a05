"""`in_process=True`: the same answers with no other process, and a mistake in an actor is seen at once."""

from __future__ import annotations

import os

import psutil
import pytest

from actorserve import LLM, BeamSearchParams, ConfigError, EngineDead, SamplingParams
from actorserve.actors.detokenizer.actor import DetokenizerActor
from actorserve.actors.llm import engine
from tests.support.server import left_segments, segments

PROMPTS = [f"Number {index} is" for index in range(12)]
PARAMS = [SamplingParams(temperature=0.7, seed=index, max_tokens=5 + index, logprobs=1) for index in range(12)]


def found_by_prefix(llm: LLM) -> list[int]:
    """Cached tokens of a prompt when it is new, when it is known, and after a reset."""
    params, found = SamplingParams(max_tokens=1), list[int]()
    for reset in (True, False, True):
        if reset:
            assert llm.reset_prefix_cache() is True
        (output,) = llm.generate("Once upon a time there were foxes. " * 12, params, use_tqdm=False)
        found.append(output.num_cached_tokens)
    return found


def test_a_reset_that_nobody_hears_of_is_not_waited_for(llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """The thread may end between the question and its turn."""
    monkeypatch.setattr(engine, "RESET_S", 0.0)
    monkeypatch.setattr(llm._engine, "_call", lambda *_: None)
    with pytest.raises(RuntimeError, match="not known within 0 s whether the prefix cache was reset"):
        llm.reset_prefix_cache()


def test_its_answers_are_those_of_the_processes(llm: LLM) -> None:
    expected = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
    assert found_by_prefix(llm) == [0, 96, 0]
    before, files = psutil.Process().children(), segments()
    with LLM(in_process=True, max_num_seqs=4, threads=1) as inside:
        assert not {*psutil.Process().children()} - {*before} and os.getpid() == inside._pid
        got = inside.generate(PROMPTS, PARAMS, use_tqdm=False)
        said = inside.chat([{"role": "user", "content": "Hello"}], SamplingParams(temperature=0), use_tqdm=False)
        assert found_by_prefix(inside) == [0, 96, 0]
        for sleeping in (llm, inside):
            sleeping.sleep(level=2)
            assert sleeping.is_sleeping()
            with pytest.raises(ValueError, match="tags must be among weights and kv_cache, not 'brain'"):
                sleeping.wake_up(["brain"])
            assert sleeping.wake_up(["weights"]) is False and sleeping.wake_up(["kv_cache"]) is True
            assert not sleeping.is_sleeping()
            assert sleeping.generate(PROMPTS[:1], PARAMS[:1], use_tqdm=False)[0].outputs == got[0].outputs
    assert [one.outputs[0].token_ids for one in got] == [one.outputs[0].token_ids for one in expected]
    assert [one.outputs[0].text for one in got] == [one.outputs[0].text for one in expected]
    assert said[0].outputs[0].finish_reason in ("stop", "length")
    assert not left_segments(files)


def test_a_mistake_in_an_actor_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(actor: DetokenizerActor, message: object) -> None:
        raise RuntimeError("planted")

    with LLM(in_process=True, max_num_seqs=4, threads=1) as inside:
        monkeypatch.setattr(DetokenizerActor, "handle", fail)
        with pytest.raises(EngineDead, match="planted"):
            inside.generate("Hello", use_tqdm=False)


def test_one_process_has_one_worker() -> None:
    with pytest.raises(ConfigError, match="--tensor-parallel-size"):
        LLM(in_process=True, tensor_parallel_size=2)
    with pytest.raises(ConfigError, match="--pipeline-parallel-size"):
        LLM(in_process=True, pipeline_parallel_size=2)


def test_without_a_tokenizer_prompts_are_ids(llm: LLM) -> None:
    ids, params, beams = [5, 6, 7], SamplingParams(temperature=0, max_tokens=4), BeamSearchParams(2, 4)
    wanted = llm.generate({"prompt_token_ids": ids}, params, use_tqdm=False)[0].outputs[0].token_ids
    best = [one.tokens for one in llm.beam_search({"prompt_token_ids": ids}, beams)[0].sequences]
    with LLM(in_process=True, skip_tokenizer_init=True, threads=1) as made:
        (output,) = made.generate({"prompt_token_ids": ids}, params, use_tqdm=False)
        assert (output.outputs[0].token_ids, output.outputs[0].text) == (wanted, "")
        assert [one.tokens for one in made.beam_search({"prompt_token_ids": ids}, beams)[0].sequences] == best
        with pytest.raises(ValueError, match="prompt 0: prompt needs texts"):
            made.generate("a text", params, use_tqdm=False)
        with pytest.raises(ValueError, match="prompt 0: prompt needs texts"):
            made.beam_search("a text", beams)
