"""What a router reads in a body: texts that begin alike go where that beginning was computed."""

from __future__ import annotations

import contextlib
import json
from typing import Any

import pytest

from actorserve.actors.route.request import BLOCK, is_json, understand
from actorserve.http.errors import ApiError
from actorserve.http.transport.body import check_kind

TEXT = "".join(f"line {number}\n" for number in range(400))


def blocks(path: str, **body: Any) -> list[bytes]:
    found = understand("POST", path, {}, json.dumps({"model": "m", **body}).encode(), True).prefix
    assert len(found) > 10
    return found


@pytest.mark.parametrize("field", ["input_prefix", "input_suffix"])
def test_what_stands_around_the_gap_counts(field: str) -> None:
    """As an editor asks /infill while somebody types: `prompt` is the last of it, and often empty."""
    first, other = (
        blocks("/infill", **{field: text, "prompt": ""}) for text in (TEXT, TEXT.replace("line 99", "line 88"))
    )
    assert first != other and first[0] == other[0]
    grown = blocks("/infill", **{field: TEXT + "and more of it\n" * 99, "prompt": ""})
    shared = len(TEXT.encode()) // BLOCK - 1
    assert grown[:shared] == first[:shared] and len(grown) > len(first)


def test_files_of_the_repository_stand_first() -> None:
    extra = [{"filename": "a.py", "text": TEXT}]
    one, two = (blocks("/infill", input_extra=extra, input_prefix=text, prompt="") for text in ("def a", "def b"))
    assert one[:10] == two[:10]


def test_a_conversation_is_hashed_as_it_grows() -> None:
    turns = [{"role": "user", "content": TEXT}]
    first = blocks("/v1/chat/completions", messages=turns)
    grown = blocks("/v1/chat/completions", messages=[*turns, {"role": "assistant", "content": "So it is."}])
    assert grown[: len(first) - 1] == first[:-1]


@pytest.mark.parametrize(
    ("path", "body", "goes_on"),
    [
        ("/v1/responses", {"previous_response_id": "resp_1"}, True),
        ("/responses?a=b", {"input": [{"role": "user"}, {"type": "item_reference", "id": "a"}]}, True),
        ("/v1/responses/compact", {"previous_response_id": "resp_1"}, True),
        ("/v1/responses", {"conversation": {"id": "conv_1"}, "input": "a"}, True),
        ("/v1/responses", {"conversation": None}, False),
        ("/v1/responses", {"previous_response_id": None, "input": "item_reference"}, False),
        ("/v1/responses", {"input": [{"role": "user", "content": "item_reference"}]}, False),
        ("/v1/responses", {"input": ["item_reference"]}, False),
        ("/v1/chat/completions", {"previous_response_id": "resp_1"}, False),
    ],
)
def test_what_goes_on_from_a_response(path: str, body: dict[str, Any], goes_on: bool) -> None:
    assert understand("POST", path, {}, json.dumps(body).encode(), True).goes_on is goes_on


@pytest.mark.parametrize(
    ("path", "body", "moves"),
    [
        ("/", {"inputs": "a", "stream": True}, True),
        ("/", {"inputs": "a"}, False),
        ("/generate_stream", {"inputs": "a"}, True),
        ("/generate", {"inputs": "a"}, False),
        *[(path, {"stream": True}, True) for path in ("/generate", "/v1/completions")],
        *[(path, {"stream": True, "session_params": {"id": "s"}}, False) for path in ("/generate", "/v1/completions")],
        ("/v1/responses/compact", {"input": "a"}, False),
    ],
)
def test_which_streams_can_be_gone_on_with(path: str, body: dict[str, Any], moves: bool) -> None:
    assert understand("POST", path, {}, json.dumps(body).encode(), True).moves is moves


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/completions", {"lora_path": "a"}, "a"),
        ("/v1/chat/completions", {"model": "m", "lora_path": "a"}, "a"),
        ("/v1/completions", {"model": "m", "lora_path": ["a", "a"]}, "a"),
        *[("/v1/completions", {"model": "m", "lora_path": none}, "m") for none in (None, "", [], [None], 1, ["", 2])],
        ("/generate?a=b", {"model": "m", "lora_path": "a"}, "m"),
        ("/generate", {"lora_path": ["a"]}, "a"),
        ("/v1/load_lora_adapter", {"lora_name": "a", "lora_path": "/data/a"}, ""),
    ],
)
def test_an_adapter_is_asked_for_by_either_name(path: str, body: dict[str, Any], model: str) -> None:
    assert understand("POST", path, {}, json.dumps(body).encode(), True).model == model


def test_what_an_adapter_has_computed_is_none_of_another_ones() -> None:
    path = "/v1/completions"
    one, other = (blocks(path, prompt=TEXT, lora_path=name) for name in ("a", "b"))
    assert one == blocks(path, prompt=TEXT, model="a") and not set(one) & set(other)


def test_a_text_of_text_generation_inference_is_hashed() -> None:
    one, two = blocks("/", inputs=TEXT), blocks("/generate", inputs=TEXT + "x")
    assert one[:5] == two[:5] and len(one) > 5


@pytest.mark.parametrize(
    ("kind", "is_read"),
    [
        *[(kind, True) for kind in ("", "application/json", "Application/JSON; charset=utf-8", "text/json")],
        *[(kind, True) for kind in ("application/vnd.api+json", "application/x-www-form-urlencoded")],
        ("application/octet-stream", True),
        *[(kind, False) for kind in ("text/plain", "multipart/form-data; boundary=json", "application/jsonl")],
    ],
)
def test_what_a_replica_reads_as_json_is_read_here(kind: str, is_read: bool) -> None:
    assert is_json(kind) is is_read
    with contextlib.nullcontext() if is_read else pytest.raises(ApiError):
        check_kind(kind, of_page=False)
