"""A prompt by its tokens, and an answer by its own: what comes of both is as if it had been asked for at once."""

from __future__ import annotations

from typing import Any

import httpx2 as httpx
import msgspec
import pytest

from actorserve.http.openapi.answers import Rendered

ASKED = "What is the capital of France?"
HI = [{"role": "user", "content": ASKED}]


def post(client: httpx.Client, path: str, body: Any, status: int = 200) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 0},
        {"temperature": 0, "max_tokens": 3},
        {"temperature": 0, "stop": "Par"},
        {"temperature": 1.2, "seed": 3, "n": 2, "max_completion_tokens": 9},
        {"temperature": 0, "logprobs": True, "top_logprobs": 2, "return_tokens_as_token_ids": True, "max_tokens": 4},
    ],
)
def test_a_chat_by_tokens_is_as_at_once(client: httpx.Client, fields: dict[str, Any]) -> None:
    body = {"messages": HI, **fields}
    rendered = post(client, "/v1/chat/completions/render", body)
    generated = post(client, "/inference/v1/generate", rendered)
    given = {"generate_response": generated, "chat_request": body, "prompt_token_ids": rendered["token_ids"]}
    answer, expected = post(client, "/v1/chat/completions/derender", given), post(client, "/v1/chat/completions", body)
    for made, wanted in zip(answer["choices"], expected["choices"], strict=True):
        for name in ("index", "message", "finish_reason", "stop_reason", "logprobs"):
            assert made[name] == wanted[name]
    for name in ("prompt_tokens", "completion_tokens", "total_tokens"):
        assert answer["usage"][name] == expected["usage"][name]


def test_texts_by_tokens_are_as_at_once(client: httpx.Client) -> None:
    body = {"prompt": ["The capital of France is", "One, two"], "max_tokens": 5, "temperature": 0}
    rendered = post(client, "/v1/completions/render", body)
    assert len(rendered) == 2 and rendered[0]["sampling_params"]["max_tokens"] == 5
    generated = [post(client, "/inference/v1/generate", one) for one in rendered]
    count = sum(len(one["token_ids"]) for one in rendered)
    given = {"generate_responses": generated, "completion_request": body, "prompt_tokens": count}
    answer, expected = post(client, "/v1/completions/derender", given), post(client, "/v1/completions", body)
    assert [one["text"] for one in answer["choices"]] == [one["text"] for one in expected["choices"]]
    assert [one["finish_reason"] for one in answer["choices"]] == ["length"] * 2
    assert answer["usage"]["completion_tokens"] == expected["usage"]["completion_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("chat/completions/render", {"messages": HI, "use_beam_search": True}, "use_beam_search"),
        ("chat/completions/render", {"messages": []}, "messages"),
        ("chat/completions/derender", {"generate_response": {"choices": []}}, "generate_response.choices"),
        ("chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [1 << 20]}]}}, "token_ids"),
        ("chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [1] * 5000}]}}, "token_ids"),
        (
            "completions/derender",
            {"generate_responses": [{"choices": [{"token_ids": [5]}]}], "stream": True},
            "generate_chunk",
        ),
        ("completions/derender", {}, "generate_responses"),
    ],
)
def test_what_cannot_be(client: httpx.Client, path: str, body: dict[str, Any], param: str) -> None:
    error = post(client, f"/v1/{path}", body, 400)["error"]
    assert error["param"] == param


DIALECTS = [
    ("/v1/messages", {"messages": HI, "max_tokens": 100_000, "stop_sequences": ["Par"]}),
    ("/v1/responses", {"input": ASKED, "stop": ["Par"]}),
    ("/cohere/v2/chat", {"messages": HI, "max_tokens": 100_000, "stop_sequences": ["Par"]}),
]


@pytest.mark.parametrize(("path", "body"), DIALECTS)
def test_a_conversation_of_another_api_has_the_tokens_of_its_chat(
    client: httpx.Client, path: str, body: dict[str, Any]
) -> None:
    name = post(client, "/v1/chat/completions/render", {"messages": HI})["model"]
    rendered = post(client, f"{path}/render", {"model": name, "temperature": 0, **body})
    wanted = post(client, "/v1/chat/completions/render", {"messages": HI, "temperature": 0, "stop": ["Par"]})
    assert rendered | {"request_id": wanted["request_id"]} == wanted
    assert post(client, "/inference/v1/generate", rendered)["choices"][0]["finish_reason"] == "stop"


@pytest.mark.parametrize(
    ("path", "body", "named"),
    [
        ("/v1/messages", {"messages": HI, "max_tokens": 9, "system": [{"type": "image"}]}, "system[0]"),
        ("/v1/messages", {"messages": HI, "max_tokens": 9, "stop_sequences": [""]}, "stop_sequences"),
        ("/v1/responses", {"input": []}, "input"),
        ("/v1/responses", {"input": ASKED, "tools": [{"type": "mcp", "server_label": "a"}]}, "tools[0]"),
        ("/cohere/v2/chat", {"messages": HI, "k": -5}, "k"),
    ],
)
def test_what_cannot_be_is_named_as_the_api_does(
    client: httpx.Client, path: str, body: dict[str, Any], named: str
) -> None:
    assert named in str(post(client, f"{path}/render", {"model": "actorserve-demo", **body}, 400))


def test_what_forces_a_call_is_no_sampling_parameter(client: httpx.Client) -> None:
    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    body = {"messages": HI, "tools": [tool], "tool_choice": "required"}
    assert post(client, "/v1/chat/completions/render", body, 400)["error"]["param"] == "tool_choice"
    assert post(client, "/v1/chat/completions/render", body | {"tool_choice": "none"})["token_ids"]


def test_requests_have_ids_of_their_kind_and_of_their_own(client: httpx.Client) -> None:
    chat, texts, own = "/v1/chat/completions/render", "/v1/completions/render", {"request_id": "abc"}
    assert post(client, chat, {"messages": HI, **own})["request_id"] == "chatcmpl-abc"
    assert [one["request_id"] for one in post(client, texts, {"prompt": "a", **own})] == ["cmpl-abc"]
    several = post(client, texts, {"prompt": ["a", "b"], **own})
    assert [one["request_id"] for one in several] == ["cmpl-abc-0", "cmpl-abc-1"]
    made = {post(client, chat, {"messages": HI})["request_id"] for _ in range(2)}
    assert len(made) == 2 and all(one.startswith("chatcmpl-") for one in made)
    named = post(client, "/v1/responses/render", {"model": "actorserve-demo", "input": ASKED})
    assert named["request_id"].startswith("resp_")


def test_where_tokens_stand_in_the_text(client: httpx.Client) -> None:
    """In characters; of a chat in what the template has made of it."""
    text = "Grüße 🦊, how are you?"
    (whole,) = post(client, "/v1/completions/render", {"prompt": text, "return_token_offsets": True})
    assert len(whole["token_offsets"]) == len(whole["token_ids"])
    spans = [(start, end) for start, end in whole["token_offsets"] if start < end]
    assert {at for start, end in spans for at in range(start, end)} == set(range(len(text)))
    assert not post(client, "/v1/completions/render", {"prompt": text})[0]["token_offsets"]
    assert not post(client, "/v1/completions/render", {"prompt": [5, 7], "return_token_offsets": True})[0][
        "token_offsets"
    ]
    body = {"messages": [{"role": "user", "content": text}], "return_token_offsets": True}
    chat = post(client, "/v1/chat/completions/render", body)
    assert len(chat["token_offsets"]) == len(chat["token_ids"]) and chat["token_offsets"][-1][1] > len(text)
    assert "token_offsets" not in post(client, "/v1/chat/completions", body | {"max_tokens": 1})


@pytest.mark.parametrize("side", ["left", "right"])
def test_what_is_cut_off_is_cut_where_it_is_rendered(client: httpx.Client, side: str) -> None:
    text = "The quick brown fox jumps over the lazy dog."
    asked = {"prompt": text, "return_token_offsets": True}
    (whole,) = post(client, "/v1/completions/render", asked)
    body = asked | {"truncate_prompt_tokens": 4, "truncation_side": side, "max_tokens": 3, "temperature": 0}
    (cut,) = post(client, "/v1/completions/render", body)
    part = slice(4) if side == "right" else slice(-4, None)
    assert cut["token_ids"] == whole["token_ids"][part] and cut["token_offsets"] == whole["token_offsets"][part]
    assert "truncate_prompt_tokens" not in cut["sampling_params"]
    usual = post(client, "/v1/completions", {**body, "return_token_ids": True})["choices"][0]
    assert usual["prompt_token_ids"] == cut["token_ids"]
    assert post(client, "/inference/v1/generate", cut)["choices"][0]["token_ids"] == usual["token_ids"]


def test_a_stream_is_rendered_as_one(client: httpx.Client) -> None:
    options = {"stream": True, "stream_options": {"include_usage": True}}
    for path, body in (("chat/completions", {"messages": HI}), ("completions", {"prompt": "a"})):
        made = post(client, f"/v1/{path}/render", {**body, **options, "max_tokens": 2})
        rendered = made[0] if isinstance(made, list) else made
        assert msgspec.to_builtins(msgspec.convert(rendered, Rendered)) == rendered  # which /openapi.json has
        assert rendered["stream"] is True and rendered["stream_options"]["include_usage"] is True
        answer = client.post("/inference/v1/generate", json=rendered)
        assert answer.headers["content-type"].startswith("text/event-stream") and '"usage"' in answer.text
    assert post(client, "/v1/chat/completions/render", {"messages": HI})["stream"] is False
