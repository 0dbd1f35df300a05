"""What is asked of other actors beside prompts, when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from actorserve import LLM, Counter, Gauge, Histogram, Metric, SamplingParams, Vector


@pytest.mark.parametrize("why", [KeyboardInterrupt, TimeoutError])
def test_what_its_caller_gives_up_is_given_up(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, why: type[BaseException]
) -> None:
    """As a beam search behind Ctrl-C; what is asked later is answered."""
    begun, ended = threading.Event(), threading.Event()

    async def ask(_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted(_: Future[Any], __: float | None = None) -> None:
        assert begun.wait(60)
        raise why

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(RuntimeError if why is TimeoutError else why):
        llm.engine.ask(ask, 60.0, "it was asked")
    monkeypatch.undo()
    assert ended.wait(60)
    (output,) = llm.generate("One and one is", SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.finished


def of(metrics: list[Metric], name: str, **labels: str) -> Metric:
    """The one metric of this name whose labels have these among them."""
    (found,) = (one for one in metrics if one.name == name and labels.items() <= one.labels.items())
    return found


def test_metrics_are_vllms_by_its_names() -> None:
    """Of an LLM whose actors take turns: in processes a detokenizer that is late may tell an end, of which the word is
    stored, before a scheduler that has no CPU meanwhile has counted it.
    """

    def read() -> tuple[int, int, int]:
        metrics = inside.get_metrics()
        written = of(metrics, "vllm:generation_tokens")
        ended = of(metrics, "vllm:request_success", finished_reason="length")
        counted = of(metrics, "vllm:request_generation_tokens")
        assert isinstance(written, Counter) and isinstance(ended, Counter) and isinstance(counted, Histogram)
        assert counted.buckets["+Inf"] == counted.count == max(counted.buckets.values())
        assert isinstance(of(metrics, "vllm:kv_cache_usage_perc"), Gauge)
        places = of(metrics, "vllm:spec_decode_num_accepted_tokens_per_pos")
        assert isinstance(places, Vector) and "position" not in places.labels
        assert places.values == sorted(places.values, reverse=True)
        assert all(one.name.startswith("vllm:") for one in metrics)
        return written.value, ended.value, counted.count

    with LLM(in_process=True, max_num_seqs=4, threads=1) as inside:
        for times in (1, 2):
            inside.generate(["One and one is"] * 3, SamplingParams(max_tokens=4, ignore_eos=True), use_tqdm=False)
            assert read() == (12 * times, 3 * times, 3 * times)


def test_workers_are_counted(llm: LLM) -> None:
    assert llm.get_world_size() == llm.get_world_size(include_dp=False) == 1


def test_the_model_is_read_by_vllms_names(llm: LLM) -> None:
    about = llm.llm_engine.model_config
    assert about is llm.model_config and about.max_model_len == llm.engine.model.max_model_len
    assert about.get_vocab_size() == about.hf_config.vocab_size == about.hf_text_config.vocab_size
    assert about.architecture in about.hf_config.architectures
    assert about.architectures == [about.architecture] and about.runner_type == "generate"
    assert not (about.is_encoder_decoder or about.is_multimodal_model or about.enforce_eager or about.revision)
    assert about.tokenizer == about.model and about.served_model_name == "actorserve-demo"
