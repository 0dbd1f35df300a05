"""Bodies of other APIs: those are answered that /openapi.json says are right, and no others."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from tests.support.client import http_client
from tests.support.server import Server

SHORT = {"sampling_params": {"max_new_tokens": 1}}
HI = [{"role": "user", "content": "hi"}]
CALLED = [
    *HI,
    {"role": "assistant", "tool_calls": [{"id": "a", "function": {"name": "f", "arguments": "{}"}}]},
]


ASKED: list[dict[str, Any]] = [
    *({"text": "a"}, {"text": ["a", "b"]}, {"input_ids": [5, 6]}, {"input_ids": [[5], [6]], "text": None}),
    {"text": "a", "input_embeds": None},
]
NOT_ASKED: list[dict[str, Any]] = [
    *({}, {"text": None}, {"text": "a", "input_ids": [5]}, {"text": 5}, {"text": []}),
    *({"input_ids": []}, {"input_ids": [[]]}, {"input_ids": [-1]}),
    *({"text": "a", "input_embeds": 1}, {"text": "a", "return_entropy": 1}),
]


def saying(*parts: dict[str, Any]) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": [*parts]}], "max_tokens": 1}


BODIES: dict[str, list[tuple[dict[str, Any], bool]]] = {
    "/generate": [
        *((SHORT | one, True) for one in ASKED),
        *((SHORT | one, False) for one in NOT_ASKED),
        *(
            ({"text": "a", "sampling_params": {"max_new_tokens": 1, "top_p": top_p}}, top_p == 1)
            for top_p in (0, 1, 1.5)
        ),
        *(
            ({"text": "a", "sampling_params": {"max_new_tokens": 1, "top_k": top_k}}, top_k > -2)
            for top_k in (-2, -1, 0)
        ),
    ],
    "/v2/chat": [
        ({"messages": HI, "max_tokens": 1}, True),
        ({"messages": [], "max_tokens": 1}, False),
        *(({"messages": HI, "max_tokens": 1, "k": k}, k > -2) for k in (-2, 0, 5)),
        *(({"messages": HI, "max_tokens": 1, "p": p}, p <= 1) for p in (0.5, 1, 1.5)),
        *(({"messages": HI, "max_tokens": 1, "frequency_penalty": one}, one < 2) for one in (-2, 1, 2.5)),
        ({"messages": [*CALLED, {"role": "tool", "content": "x", "tool_call_id": "a"}], "max_tokens": 1}, True),
        ({"messages": [*CALLED, {"role": "tool", "content": "x"}], "max_tokens": 1}, False),
        (saying({"type": "text", "text": "a"}), True),
        (saying({"type": "document", "document": {"data": "a"}}), True),
        (saying({"type": "text"}), False),
        (saying({"type": "text", "document": {"data": "a"}}), False),
        (saying({"type": "else", "text": "a"}), False),
    ],
}


@pytest.mark.parametrize("path", BODIES)
def test_what_is_said_is_what_is_checked(path: str, demo_server: Server) -> None:
    with http_client(demo_server) as client:
        document = client.get("/openapi.json").json()
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        validator = jsonschema.Draft202012Validator(schema | {"components": document["components"]})
        for body, right in BODIES[path]:
            answer = client.post(path, json=body)
            assert answer.status_code == (200 if right else 400), (body, answer.text)
            assert validator.is_valid(body) is right, body
