"""Bodies of Text Generation Inference as the completions that ask for the same."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.openai.schemas import TokensRequest
from actorserve.http.tgi.requests import completion_of, is_tgi, renamed
from actorserve.http.tgi.schemas import TgiRequest


def body_of(**parameters: Any) -> TgiRequest:
    return decode(TgiRequest, json.dumps({"inputs": "a", "parameters": parameters}).encode())


def completion(stream: Any = False, **parameters: Any) -> dict[str, Any]:
    """What it asks for beside what every one does."""
    made = msgspec.to_builtins(completion_of(body_of(**parameters), stream))
    assert made["prompt"] == "a" and made["include_stop_str_in_output"] and made["stream"] is stream
    plain = msgspec.to_builtins(TokensRequest(prompt="a", include_stop_str_in_output=True, stream=stream))
    return {name: value for name, value in made.items() if value != plain[name]}


def test_the_likeliest_tokens_are_taken_unless_draws_are_asked_for() -> None:
    greedy = {"max_tokens": 100, "temperature": 0.0}
    off = {"do_sample": False, "temperature": 1, "top_p": 1, "top_k": 0, "typical_p": 1}
    for given in ({}, off, {"watermark": False}):
        made = completion(**given)
        assert greedy.items() <= made.items(), given
    assert completion(do_sample=True) == {"max_tokens": 100}
    assert completion(temperature=0.5) == {"max_tokens": 100, "temperature": 0.5}
    assert completion(typical_p=0.95) == {"max_tokens": 100, "typical_p": 0.95}
    assert completion(top_k=3) == {"max_tokens": 100, "top_k": 3}
    assert completion(top_p=0.9, temperature=1) == {"max_tokens": 100, "top_p": 0.9, "temperature": 1.0}


def test_the_same_by_other_names() -> None:
    given = {"max_new_tokens": 5, "truncate": 7, "seed": 3, "stop": ["x"], "adapter_id": "b"}
    given |= {"repetition_penalty": 1.2, "frequency_penalty": 0.1, "do_sample": True}
    assert completion(**given) == {
        **{"max_tokens": 5, "truncate_prompt_tokens": 7, "seed": 3, "stop": ["x"], "model": "b"},
        **{"repetition_penalty": 1.2, "frequency_penalty": 0.1},
    }


@pytest.mark.parametrize(
    ("grammar", "outputs"),
    [
        ({"type": "regex", "value": "a+"}, {"regex": "a+"}),
        ({"type": "json", "value": {"type": "object"}}, {"json": {"type": "object"}}),
        ({"type": "json", "value": '{"type": "object"}'}, {"json": '{"type": "object"}'}),
        ({"type": "json_schema", "value": {"name": "n", "schema": {"type": "object"}}}, {"json": {"type": "object"}}),
    ],
)
def test_a_grammar_is_one_of_ours(grammar: dict[str, Any], outputs: dict[str, Any]) -> None:
    assert completion(grammar=grammar, do_sample=True) == {"max_tokens": 100, "structured_outputs": outputs}


def test_tokens_are_told_where_they_are_wanted() -> None:
    assert completion(do_sample=True, details=True)["logprobs"] == completion(True, do_sample=True)["logprobs"] == 0
    assert completion(details=True, top_n_tokens=3)["logprobs"] == 3 and "logprobs" not in completion(top_n_tokens=3)


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"watermark": True}, "watermark"),
        ({"best_of": 2}, "best_of"),
        ({"decoder_input_details": True}, "decoder_input_details"),
        ({"truncate": 0}, "truncate"),
        ({"top_n_tokens": 21}, "top_n_tokens"),
        ({"stop": "x"}, "stop"),
        ({"grammar": {"type": "regex", "value": {}}}, "grammar.value"),
        ({"grammar": {"type": "json", "value": 5}}, "grammar.value"),
        ({"grammar": {"type": "json_schema", "value": {"name": "n"}}}, "grammar.value"),
        ({"grammar": {"type": "lark", "value": ""}}, "grammar.type"),
    ],
)
def test_what_cannot_be_is_named(given: dict[str, Any], param: str) -> None:
    with pytest.raises(ApiError) as raised:
        completion_of(body_of(**given), False)
    assert (raised.value.status, raised.value.param) == (400, f"parameters.{param}")
    assert param in raised.value.message


def test_what_asks_for_nothing_is_taken() -> None:
    given = {"watermark": False, "best_of": 1, "decoder_input_details": False, "unknown": 5}
    assert completion(**given) == completion() == completion(**dict.fromkeys(given))


def test_errors_have_this_apis_names() -> None:
    said = {"max_tokens": "max_new_tokens", "truncate_prompt_tokens": "truncate", "typical_p": "typical_p"}
    for ours, theirs in said.items():
        error = renamed(ApiError(400, f"{ours} must be else.", ours), body_of())
        assert (error.param, error.message) == (f"parameters.{theirs}", f"parameters.{theirs} must be else.")
    assert renamed(ApiError(404, "No.", "model"), body_of(adapter_id="x")).param == "parameters.adapter_id"
    assert renamed(ApiError(404, "No.", "model"), body_of()).param == "model"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"inputs": "a"}, True),
        ({"inputs": 5, "text": None}, True),
        ({"text": "a"}, False),
        ({"input_ids": [1], "inputs": "a"}, False),
        ({"inputs": None}, False),
        ({}, False),
        ([], False),
    ],
)
def test_whose_a_body_of_generate_is(body: Any, told: bool) -> None:
    assert is_tgi(json.dumps(body).encode()) is told and not is_tgi(b"{")
