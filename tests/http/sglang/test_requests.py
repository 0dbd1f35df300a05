"""SGLang's bodies as the completions that they ask for."""

from __future__ import annotations

import pytest

from actorserve.http.generation.fields.decoding import decode
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest
from actorserve.http.sglang.requests import completion_of
from actorserve.http.sglang.schemas import SglangGenerateRequest, SglangSampling
from tests.http.bodies import HI, body_of, refusal


def test_an_empty_schema_is_any_json() -> None:
    body = SglangGenerateRequest(text="a", sampling_params=SglangSampling(json_schema={}))
    assert completion_of(body).json_schema == {}
    body.sampling_params = SglangSampling(json_schema="")
    assert completion_of(body).json_schema is None


@pytest.mark.parametrize("kind", [ChatRequest, CompletionRequest])
def test_a_request_has_its_id_by_sglangs_name(kind: type[ChatRequest | CompletionRequest]) -> None:
    for given, found in (({"rid": "a"}, "a"), ({"rid": ["a", "b"]}, "a"), ({"rid": []}, None), ({}, None)):
        assert decode(kind, body_of(messages=HI, prompt="", **given)).request_id == found
    assert decode(kind, body_of(messages=HI, prompt="", rid="a", request_id="own")).request_id == "own"
    assert "rid" in refusal(decode, kind, body_of(messages=HI, prompt="", rid=5)).message
