"""llama.cpp's bodies as the completions that they ask for."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.request import Generation
from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.fields.sampling import check_fields, parameters
from actorserve.http.llamacpp.requests import completion_of, infill_of
from actorserve.http.llamacpp.schemas import ExtraFile, LlamaCompletionRequest, LlamaInfillRequest

CODE_GEMMA = {"<|fim_prefix|>": 67, "<|fim_suffix|>": 69, "<|fim_middle|>": 68, "<|file_separator|>": 70}
CODE_LLAMA = {"▁<PRE>": 7, "▁<SUF>": 8, "▁<MID>": 9, "▁<EOT>": 10}


def test_an_empty_schema_is_any_json() -> None:
    assert completion_of(LlamaCompletionRequest(prompt="a", json_schema={})).json_schema == {}
    assert completion_of(LlamaCompletionRequest(prompt="a")).json_schema is None


def test_several_answers() -> None:
    assert completion_of(LlamaCompletionRequest(prompt="a", n_cmpl=3)).n == 3


def test_typical_p() -> None:
    """0 is off here, as 1 is."""
    assert completion_of(LlamaCompletionRequest(prompt="a", typical_p=0.5)).typical_p == 0.5
    assert completion_of(LlamaCompletionRequest(prompt="a", typical_p=0)).typical_p is None


def infill(**fields: Any) -> LlamaInfillRequest:
    return LlamaInfillRequest(input_prefix="a", input_suffix="b", **fields)


def test_what_is_filled_in_ends_where_another_file_would_begin() -> None:
    assert sorted(infill_of(infill(), CODE_GEMMA)) == [67, 68, 69, 70]
    assert sorted(infill_of(infill(), CODE_LLAMA)) == [7, 8, 9, 10]
    assert infill_of(infill(ignore_eos=True), CODE_LLAMA) == []


def test_a_beginning_that_is_null_is_none() -> None:
    body = decode(LlamaInfillRequest, b'{"input_prefix": "a", "input_suffix": "b", "prompt": null}')
    infill_of(body, CODE_LLAMA)
    assert body.prompt == "▁<PRE>a▁<SUF>b▁<MID>"


def test_other_files_stand_before_it_with_a_token_for_that_or_without() -> None:
    body = infill(input_extra=[ExtraFile("x", "x.py"), ExtraFile("y")])
    infill_of(body, CODE_GEMMA)
    mark = "<|file_separator|>"
    assert body.prompt == f"{mark}x.py\nx\n{mark}file1\ny\n{mark}file\n<|fim_prefix|>a<|fim_suffix|>b<|fim_middle|>"
    body = infill(input_extra=[ExtraFile("x", "x.py")])
    infill_of(body, CODE_LLAMA)
    assert body.prompt == "\n\n--- snippet ---\n\nx▁<PRE>a▁<SUF>b▁<MID>"


def test_samplers_that_are_not_named_are_off() -> None:
    given: dict[str, Any] = {"prompt": "a", "temperature": 0.5, "top_k": 40, "min_p": 0.1, "repeat_penalty": 1.2}
    some = completion_of(LlamaCompletionRequest(**given, samplers=["top_k", "typ_p", "temperature"]))
    assert (some.temperature, some.top_k, some.min_p, some.repetition_penalty) == (0.5, 40, 0, 1)
    assert (some.top_p, some.top_n_sigma, some.typical_p) == (1, -1, None)
    nothing: tuple[list[str] | None, ...] = ([], None)
    for samplers in nothing:
        every = completion_of(LlamaCompletionRequest(**given, samplers=samplers))
        assert (every.min_p, every.repetition_penalty, every.top_p) == (0.1, 1.2, None)
    assert completion_of(infill(samplers=["top_k", "infill"], temperature=0.5)).temperature == 0
    assert completion_of(infill(samplers=["infill", "temperature"], temperature=0.5)).temperature == 0.5


@pytest.mark.parametrize("samplers", [["top_k", "nobody"], "kz"])
def test_samplers_that_nobody_knows(samplers: Any) -> None:
    with pytest.raises(ApiError, match=r"samplers:") as raised:
        completion_of(LlamaCompletionRequest(prompt="a", samplers=samplers))
    assert raised.value.param == "samplers"


@pytest.mark.parametrize("field", ["n_indent", "t_max_predict_ms"])
def test_what_editors_send_with_each_text_to_fill_in_is_no_error_there(field: str) -> None:
    given: dict[str, Any] = {field: 5}
    assert completion_of(infill(prompt="a", **given)).prompt == "a"
    with pytest.raises(ApiError, match=f"{field} is not supported"):
        completion_of(LlamaCompletionRequest(prompt="a", **given))


def test_fewer_than_no_probabilities_are_none() -> None:
    assert completion_of(LlamaCompletionRequest(prompt="a", n_probs=-1)).logprobs is None
    assert completion_of(LlamaCompletionRequest(prompt="a", n_probs=2)).logprobs == 2


@pytest.mark.parametrize("count", [0, 3])
def test_probabilities_of_what_is_drawn_from(count: int) -> None:
    """They are no more than a word where none are told; a GPU knows them, too."""
    given = completion_of(LlamaCompletionRequest(prompt="a", n_probs=count, post_sampling_probs=True))
    check_fields(given)
    sampling = msgspec.msgpack.decode(parameters(given, {}, "")[0], type=Generation).sampling
    assert sampling.post_sampling_probs == bool(count)
    assert sampling.cpu_only() == []


def test_what_sillytavern_sends_with_each_request() -> None:
    """Of samplers that there are not it says that they are off, in its own way."""
    off: dict[str, Any] = {"adaptive_target": -0.01, "mirostat": 0, "dry_multiplier": 0, "xtc_probability": 0}
    drawn: dict[str, Any] = {"seed": -1, "min_keep": 0, "n_probs": 0, "dynatemp_range": 0, "repeat_last_n": 0}
    names = ["penalties", "dry", "top_n_sigma", "top_k", "typ_p", "tfs_z", "typical_p", "xtc", "top_p", "adaptive_p"]
    body = LlamaCompletionRequest(prompt="a", repeat_penalty=1.2, samplers=[*names, "min_p"], **off, **drawn)
    given = completion_of(body)
    assert (given.seed, given.logprobs, given.temperature, given.repeat_last_n) == (None, None, 1, 0)
    assert (given.xtc_probability, given.dynatemp_range) == (0, 0)
    asked: dict[str, Any] = {
        "xtc_probability": 0.5,
        "xtc_threshold": 0.2,
        "dynatemp_range": 0.5,
        "dynatemp_exponent": 2,
    }
    made = completion_of(LlamaCompletionRequest(prompt="a", **asked))
    assert {name: getattr(made, name) for name in asked} == asked
