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


CHUNK: dict[str, Any] = {"choices": [{"token_ids": [5]}]}
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "Is it?"},
    {"type": "choice", "instructions": "Which?", "choices": [{"value": "x"}, {"value": True}]},
    {
        "type": "score",
        "instructions": [{"type": "input_text", "text": "How?"}],
        "levels": [{"label": "x"}, {"label": "y"}],
    },
]
NAMED_QUESTIONS: list[dict[str, Any]] = [
    {"type": "noul", "criteria": {"true": "x"}},
    {"type": "choice", "criteria": {"x": None}},
    {"type": "score", "criteria": ["x", "y"]},
]
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
        *(
            ({"messages": [{"role": role}, *HI], "max_tokens": 1}, role == "assistant")
            for role in ("user", "assistant")
        ),
        *(({"messages": HI, "max_tokens": 1, "min_p": one}, one == 1) for one in (1, 1.5)),
        ({"messages": HI, "max_tokens": 1, "logprob_token_ids": [1]}, False),
    ],
    "/v1/chat": [
        ({"message": "hi", "max_tokens": 1, "top_n_sigma": 1}, True),
        ({"message": "hi", "max_tokens": 1, "top_n_sigma": 101}, False),
        *(({"message": one, "max_tokens": 1}, False) for one in ("", None)),
        ({"message": "hi", "max_tokens": 1, "prompt_truncation": "OFF"}, True),
        ({"message": "hi", "max_tokens": 1, "prompt_truncation": "AUTO"}, False),
    ],
    "/completion": [
        *(({"prompt": "a", "n_predict": 1, "typical_p": one}, one < 2) for one in (0, 1, 2)),
        *(({"prompt": "a", "n_predict": 1, "repeat_penalty": one}, one > 0) for one in (0, 1)),
        *(({"prompt": "a", "n_predict": 1, "min_keep": one}, one < 2) for one in (0, 1, 2)),
        ({"prompt": "a", "n_predict": -1, "seed": -1, "t_max_predict_ms": 1}, False),
    ],
    "/separate_reasoning": [
        ({"text": "a", "reasoning_parser": "qwen3"}, True),
        ({"text": "a"}, False),
        *(({"text": "a", "reasoning_parser": one}, False) for one in (None, "x")),
    ],
    "/invocations": [
        ({"messages": HI, "max_tokens": 1}, True),
        ({"prompt": "a", "max_tokens": 1}, True),
        ({"token_ids": [5], "sampling_params": {"max_tokens": 1}}, True),
        ({"requestType": "NEW_SESSION"}, True),
        ({}, False),
        ({"messages": []}, False),
        ({"prompt": None}, False),
        ({"requestType": "NEW_SESSION", "a": 1}, False),
    ],
    "/v1/decisions": [
        *(({"input": "a", "questions": [asked]}, True) for asked in QUESTIONS),
        ({"input": "a", "questions": []}, False),
        ({"input": [], "questions": QUESTIONS}, False),
        ({"input": "a", "questions": QUESTIONS, "chat_template_kwargs": {"thinking": True}}, False),
        ({"input": "a", "questions": [QUESTIONS[0] | {"instructions": ""}]}, False),
        ({"input": "a", "questions": [QUESTIONS[0] | {"instructions": [{"type": "input_text"}]}]}, False),
        ({"input": "a", "questions": [QUESTIONS[1] | {"choices": [{"value": "x"}]}]}, False),
        ({"input": "a", "questions": [QUESTIONS[2] | {"levels": [{"label": "x"}, {"label": " "}]}]}, False),
    ],
    "/v1/systemone": [
        *(({"state": "a", "questions": {"q": asked}}, True) for asked in NAMED_QUESTIONS),
        ({"state": "a", "questions": {}}, False),
        ({"state": "a", "questions": {"": NAMED_QUESTIONS[0]}}, False),
        ({"state": "a", "questions": {"q": NAMED_QUESTIONS[0]}, "joint": True}, False),
        *(({"state": "a", "questions": {"q": {"type": kind}}}, kind == "noul") for kind in ("noul", "score", "choice")),
        *(
            ({"state": "a", "questions": {"q": {"type": "score", "criteria": levels}}}, False)
            for levels in (["x"], None, ["x", ""])
        ),
        ({"state": "a", "questions": {"q": {"type": "noul", "criteria": {"maybe": "x"}}}}, False),
    ],
    "/v1/chat/completions/derender": [
        *(({"generate_response": {"choices": [{"token_ids": ids}]}}, ids == [5]) for ids in ([5], [], [-1])),
        ({"generate_response": {"choices": []}}, False),
        *(({"stream": stream, "generate_chunk": CHUNK}, stream is True) for stream in (True, False, None)),
        ({"stream": True, "generate_chunk": CHUNK, "generate_response": {"choices": [{"token_ids": [5]}]}}, False),
        ({"stream": True, "generate_chunk": CHUNK, "prompt_token_ids": [-1]}, False),
        ({}, False),
    ],
    "/v1/completions/derender": [
        *(({"generate_responses": [{"choices": [{"token_ids": ids}]}]}, ids == [5]) for ids in ([5], [-1])),
        *(({"stream": stream, "generate_chunk": CHUNK}, stream is True) for stream in (True, None)),
        ({}, False),
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
