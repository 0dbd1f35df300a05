"""llama.cpp's bodies as the completions that they ask for."""

from __future__ import annotations

from actorserve.http.llamacpp.requests import completion_of
from actorserve.http.llamacpp.schemas import LlamaCompletionRequest


def test_an_empty_schema_is_any_json() -> None:
    assert completion_of(LlamaCompletionRequest(prompt="a", json_schema={})).json_schema == {}
    assert completion_of(LlamaCompletionRequest(prompt="a")).json_schema is None


def test_several_answers() -> None:
    assert completion_of(LlamaCompletionRequest(prompt="a", n_cmpl=3)).n == 3


def test_typical_p() -> None:
    """0 is off here, as 1 is."""
    assert completion_of(LlamaCompletionRequest(prompt="a", typical_p=0.5)).typical_p == 0.5
    assert completion_of(LlamaCompletionRequest(prompt="a", typical_p=0)).typical_p is None
