"""SGLang's bodies as the completions that they ask for."""

from __future__ import annotations

from actorserve.http.sglang.requests import completion_of
from actorserve.http.sglang.schemas import SglangGenerateRequest, SglangSampling


def test_an_empty_schema_is_any_json() -> None:
    body = SglangGenerateRequest(text="a", sampling_params=SglangSampling(json_schema={}))
    assert completion_of(body).json_schema == {}
    body.sampling_params = SglangSampling(json_schema="")
    assert completion_of(body).json_schema is None
