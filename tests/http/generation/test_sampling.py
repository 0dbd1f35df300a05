"""What a good body becomes: the parameters of its choices."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation
from actorserve.actors.protocol.topology import PARAMS_BYTES
from actorserve.http.generation.fields.decoding import check_model, decode
from actorserve.http.generation.fields.sampling import (
    LATER_BYTES,
    MAX_PARAMS_BYTES,
    check_device,
    max_tokens_of,
    with_own_seeds,
)
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest, GenerationFields
from tests.http.bodies import HI, body_of, for_chat, for_completion, generations, refusal
from tests.http.serving import SETTINGS


def test_seeds_differ_over_the_choices_and_come_again() -> None:
    first = [made.sampling.seed for made in for_chat(n=5, seed=(1 << 64) - 2)[1]]
    assert first == [(1 << 64) - 2, (1 << 64) - 1, 0, 1, 2]
    assert [made.sampling.seed for made in for_chat(n=2, seed=-2)[1]] == [(1 << 64) - 2, (1 << 64) - 1]
    for nothing in ({}, {"seed": None}, {"seed": -1}):
        drawn = {made.sampling.seed for _ in range(20) for made in for_chat(n=5, **nothing)[1]}
        assert len(drawn) == 100, "without a seed one is drawn for each request"


def test_no_two_choices_of_all_prompts_have_the_same_seed() -> None:
    made = for_chat(n=2, seed=(1 << 64) - 3, stop="a")[1]
    drawn = [
        msgspec.msgpack.decode(one, type=Generation)
        for one in with_own_seeds(list(map(msgspec.msgpack.encode, made)), 3)
    ]
    assert [one.sampling.seed for one in drawn] == [(1 << 64) - 3, (1 << 64) - 2, (1 << 64) - 1, 0, 1, 2]
    assert drawn[:2] == made and all(one.stop == ["a"] for one in drawn)


def test_no_choice_is_longer_than_a_slot_takes() -> None:
    def sizes(most: int) -> list[int]:
        stops = ["a" * 1000] * 32 + ["a" * most]
        return [len(msgspec.msgpack.encode(made)) for made in for_chat(n=2, seed=(1 << 32) - 1, stop=stops)[1]]

    fits = MAX_PARAMS_BYTES - sizes(300)[1] + 300
    first, second = sizes(fits)
    assert second == MAX_PARAMS_BYTES == PARAMS_BYTES - LATER_BYTES and first == second - 4
    assert "together longer" in refusal(sizes, fits + 1).message


def test_parameters_arrive() -> None:
    _, (made,) = for_chat(
        temperature=0.5,
        top_k=7,
        top_p=0.25,
        min_p=0.125,
        top_n_sigma=1.5,
        typical_p=0.75,
        seed=3,
        min_tokens=2,
        ignore_eos=True,
        stop=["a", "b"],
        stop_token_ids=[4, 5],
        include_stop_str_in_output=True,
        skip_special_tokens=False,
        priority=-3,
        stream=True,
    )
    drawn = made.sampling
    assert (drawn.seed, drawn.temperature, drawn.top_k, drawn.top_p, drawn.min_p) == (3, 0.5, 7, 0.25, 0.125)
    assert drawn.typical_p == 0.75
    assert drawn.top_n_sigma == 1.5 and for_chat(top_n_sigma=-1)[1][0].sampling.top_n_sigma == 0
    assert (
        drawn.min_tokens == 2 and made.ignore_eos and made.include_stop_str_in_output and not made.skip_special_tokens
    )
    assert (made.stop, made.stop_token_ids, made.priority, made.stream) == (["a", "b"], [4, 5], -3, True)
    _, (plain,) = for_chat()
    assert plain == Generation(plain.sampling, stream=False, request_id="id")
    assert for_chat(stop="a")[1][0].stop == ["a"]
    assert for_chat(no_stop_trim=True)[1][0].include_stop_str_in_output  # as SGLang calls it
    assert not for_chat(no_stop_trim=False)[1][0].include_stop_str_in_output


def test_a_penalty_by_llamacpps_name() -> None:
    """Its clients send it to OpenAI's paths, too; it looks back on the whole text."""
    for make in (for_chat, for_completion):
        assert make(repeat_penalty=1.5)[1][0].sampling.repetition_penalty == 1.5
        assert make(repeat_penalty=1.5, repetition_penalty=1.25)[1][0].sampling.repetition_penalty == 1.25
        assert refusal(make, repeat_penalty=0).param == "repeat_penalty"


def test_what_a_cpu_alone_does_is_refused_on_a_gpu() -> None:
    """Not what it does, too: penalties that look back on a part of the text, DRY, and samplers of llama.cpp's."""
    on_gpu = replace(SETTINGS, draws_on_cpu=False, sampling_defaults={"repetition_penalty": 1.1})
    check_device(decode(ChatRequest, body_of(messages=HI, repeat_last_n=64, dry_multiplier=0.8)), on_gpu)
    check_device(decode(ChatRequest, body_of(messages=HI, xtc_probability=0.5, dynatemp_range=0.5)), on_gpu)
    request = decode(ChatRequest, body_of(messages=HI, watermarking_config={}))
    check_device(request, SETTINGS)
    marked = refusal(check_device, request, on_gpu)
    assert marked.param == "watermarking_config" and "--device cpu" in marked.message


def test_defaults_of_the_model() -> None:
    defaults = {"temperature": 0.6, "top_k": 20, "top_p": 0.95, "top_n_sigma": 1.5, "typical_p": 0.9}
    (made,) = generations(decode(ChatRequest, body_of(messages=HI)), defaults)
    assert made.sampling.top_n_sigma == 1.5 and made.sampling.typical_p == 0.9
    assert (made.sampling.temperature, made.sampling.top_k, made.sampling.top_p) == (0.6, 20, 0.95)
    asked = body_of(messages=HI, temperature=0, top_k=-1, top_p=1)
    (made,) = generations(decode(ChatRequest, asked), defaults)
    assert (made.sampling.temperature, made.sampling.top_k, made.sampling.top_p) == (0, 0, 1)
    (made,) = generations(decode(ChatRequest, body_of(messages=HI)))
    assert (made.sampling.temperature, made.sampling.top_k, made.sampling.top_p, made.sampling.min_p) == (1, 0, 1, 0)


def test_the_most_tokens() -> None:
    def most(kind: type[GenerationFields], **fields: Any) -> int | None:
        return max_tokens_of(decode(kind, body_of(messages=HI, **fields)))

    assert most(ChatRequest) is None and most(CompletionRequest) == 16
    assert most(ChatRequest, max_tokens=5) == 5 and most(CompletionRequest, max_tokens=5) == 5
    assert most(ChatRequest, max_tokens=5, max_completion_tokens=7) == 7
    assert most(ChatRequest, max_tokens=9, max_completion_tokens=7) == 7
    assert most(ChatRequest, max_tokens=9, max_completion_tokens=None) == 9
    assert most(ChatRequest, max_tokens=-1) is most(CompletionRequest, max_tokens=-1) is None
    assert most(ChatRequest, max_tokens=9, max_completion_tokens=-1) is None
    assert refusal(for_chat, min_tokens=5, max_tokens=4) and for_chat(min_tokens=5, max_tokens=-1)


def test_models() -> None:
    assert check_model(None, ["a", "b"]) == check_model("", ["a", "b"]) == "a"
    assert check_model("b", ["a", "b"]) == "b"
    assert check_model("c", ["a", "b"], any_name=True) == "c"
    assert check_model("http://127.0.0.1:8000", ["a", "b"]) == "a"
    assert check_model("https://b", ["a", "https://b"]) == "https://b"
    error = refusal(check_model, "c", ["a", "b"])
    assert (error.status, error.param, error.code) == (404, "model", "model_not_found") and "`c`" in error.message


def test_unknown_fields_are_logged_at_debug_level(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "http"):
        for_chat(nobody_knows=1)
    assert not caplog.records
    with caplog.at_level(logging.DEBUG, "http"):
        for_chat(nobody_knows=1, temperature=1, **{"x" * 500: 2})
    texts = [record.getMessage() for record in caplog.records]
    assert len(texts) == 2 and "ChatRequest" in texts[0] and "'nobody_knows'" in texts[0]
    assert len(texts[1]) < 150 and {record.levelno for record in caplog.records} == {logging.DEBUG}
