"""Answers of a token-in, token-out engine, made answers of an API whole or chunk by chunk: as if asked for at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import httpx2 as httpx
import pytest

from .test_rendering import HI, post

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"
REQUEST = {"messages": HI, "temperature": 0, "max_tokens": 12}


def chunks_of(generated: dict[str, Any], sizes: list[int]) -> Iterator[dict[str, Any]]:
    """The answer as events; the last one tells its end."""
    (choice,) = generated["choices"]
    ids, content, at = choice["token_ids"], (choice["logprobs"] or {}).get("content"), 0
    assert sum(sizes) == len(ids)
    for index, size in enumerate(sizes):
        part: dict[str, Any] = {"index": 0, "token_ids": ids[at : at + size], "finish_reason": None}
        if content is not None:
            part["logprobs"] = {"content": content[at : at + size]}
        if index == len(sizes) - 1:
            part |= {"finish_reason": choice["finish_reason"], "stop_reason": choice["stop_reason"]}
        at += size
        yield {"request_id": "abc", "choices": [part]}


def streamed(client: httpx.Client, path: str, body: dict[str, Any], chunks: Iterator[dict[str, Any]]) -> list[Any]:
    """What each chunk has become."""
    state, made = None, []
    for chunk in chunks:
        given = {**body, "stream": True, "generate_chunk": chunk, "stream_state": state}
        answer = post(client, f"{path}/derender", given)
        state = answer["stream_state"]
        assert answer["chunk"]["id"] == "abc"
        made += answer["chunk"]["choices"]
    return made


def near(content: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The logprobs of another run, whose last bits depend on what it was computed with."""
    return [
        {name: near(value) if name == "top_logprobs" else value for name, value in one.items()}
        | {"logprob": pytest.approx(one["logprob"], abs=1e-4)}
        for one in content
    ]


def sizes(count: int) -> list[list[int]]:
    return [[count], [1] * count, [2, 0, 1, *[1] * (count - 3)]]


def test_a_chat_chunk_by_chunk_is_as_at_once(client: httpx.Client) -> None:
    asked = REQUEST | {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}
    expected = post(client, CHAT, asked)["choices"][0]
    rendered = post(client, f"{CHAT}/render", asked)
    generated = post(client, "/inference/v1/generate", rendered)
    body = {"chat_request": asked, "prompt_token_ids": rendered["token_ids"]}
    for cut in sizes(len(expected["token_ids"])):
        made = streamed(client, CHAT, body, chunks_of(generated, cut))
        assert made[0]["delta"]["role"] == "assistant" and all("role" not in one["delta"] for one in made[1:])
        assert "".join(one["delta"].get("content", "") for one in made) == expected["message"]["content"]
        assert [token for one in made for token in one["token_ids"]] == expected["token_ids"]
        told = [token for one in made for token in one["logprobs"]["content"]]
        assert told == near(expected["logprobs"]["content"])
        ends = [one["finish_reason"] for one in made]
        assert ends[-1] == expected["finish_reason"] and not any(ends[:-1])


def test_the_token_that_ends_a_chat_may_come_before_the_reason(client: httpx.Client) -> None:
    """It is none of the text, also where special tokens are."""
    asked = {"messages": HI, "temperature": 0, "max_tokens": 200, "skip_special_tokens": False}
    expected = post(client, CHAT, asked)["choices"][0]
    rendered = post(client, f"{CHAT}/render", asked)
    generated = post(client, "/inference/v1/generate", rendered)
    count = len(generated["choices"][0]["token_ids"])
    assert generated["choices"][0]["finish_reason"] == "stop"
    for cut in ([count], [count, 0], [count - 1, 1, 0]):
        made = streamed(client, CHAT, {"chat_request": asked}, chunks_of(generated, cut))
        assert "".join(one["delta"].get("content", "") for one in made) == expected["message"]["content"]
        assert made[-1]["finish_reason"] == "stop"


def test_texts_chunk_by_chunk_are_as_at_once(client: httpx.Client) -> None:
    asked = {"prompt": "Grüße aus", "temperature": 1, "seed": 4, "max_tokens": 12, "logprobs": 2, "ignore_eos": True}
    expected = post(client, TEXT, asked)["choices"][0]
    (rendered,) = post(client, f"{TEXT}/render", asked)
    generated = post(client, "/inference/v1/generate", rendered)
    body = {"completion_request": asked, "prompt_token_ids": rendered["token_ids"]}
    for cut in sizes(len(generated["choices"][0]["token_ids"])):
        made = streamed(client, TEXT, body, chunks_of(generated, cut))
        assert "".join(one["text"] for one in made) == expected["text"]
        assert made[-1]["finish_reason"] == "length"
        told = {name: [value for one in made for value in one["logprobs"][name]] for name in expected["logprobs"]}
        assert told["tokens"] == expected["logprobs"]["tokens"]
        assert told["text_offset"] == expected["logprobs"]["text_offset"]
        assert told["token_logprobs"] == pytest.approx(expected["logprobs"]["token_logprobs"], abs=1e-4)
    whole = {
        "generate_responses": [generated],
        "completion_request": asked,
        "prompt_token_ids": [rendered["token_ids"]],
    }
    (choice,) = post(client, f"{TEXT}/derender", whole)["choices"]
    assert choice["text"] == expected["text"] and choice["logprobs"]["tokens"] == expected["logprobs"]["tokens"]


def test_offsets_of_a_character_that_comes_in_chunks(client: httpx.Client) -> None:
    text, ids = "🦊b".encode(), [300] * 5
    content = [{"token_id": 300, "bytes": [byte], "logprob": -1.0, "rank": 1} for byte in text]
    choice = {"token_ids": ids, "finish_reason": "length", "stop_reason": None, "logprobs": {"content": content}}
    for cut in sizes(len(ids)):
        made = streamed(client, TEXT, {}, chunks_of({"choices": [choice]}, cut))
        assert [offset for one in made for offset in one["logprobs"]["text_offset"]] == [0, 0, 0, 0, 1]


def test_a_state_of_more_parts_than_tokens_is_refused(client: httpx.Client) -> None:
    """Each is read again; chunks that tell nothing are none."""
    state = {"token_ids": [300], "parts": [0] * 3}
    body = {"stream": True, "generate_chunk": {"choices": [{"token_ids": [301]}]}, "stream_state": state}
    error = post(client, f"{TEXT}/derender", body, 400)["error"]
    assert error["param"] == "stream_state" and "3 items for 1 token_ids" in error["message"]
    told = post(client, f"{TEXT}/derender", body | {"stream_state": {}, "generate_chunk": {"choices": [{}]}})
    assert told["stream_state"]["parts"] == []


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
CALL = 'A call.<tool_call>\n{"name": "look", "arguments": {"at": "the 🦊"}}\n</tool_call>'


def test_a_call_that_comes_in_chunks_has_one_id(client: httpx.Client) -> None:
    ids = post(client, "/tokenize", {"prompt": CALL, "add_special_tokens": False})["tokens"]
    answer = {
        "choices": [{"index": 0, "token_ids": ids, "finish_reason": "stop", "stop_reason": None, "logprobs": None}]
    }
    body = {"chat_request": {"messages": HI, "tools": [TOOL]}}
    message = post(client, f"{CHAT}/derender", {**body, "generate_response": answer})["choices"][0]["message"]
    (wanted,) = message["tool_calls"]
    for cut in sizes(len(ids)):
        made = streamed(client, CHAT, body, chunks_of(answer, cut))
        calls = [call for one in made for call in one["delta"].get("tool_calls", ())]
        assert len({call["id"] for call in calls if "id" in call}) == 1
        assert "".join(call["function"].get("arguments", "") for call in calls) == wanted["function"]["arguments"]
        assert "".join(one["delta"].get("content", "") for one in made) == message["content"]
        assert made[-1]["finish_reason"] == "tool_calls"


def test_logprobs_by_ids_alone_get_their_texts(client: httpx.Client) -> None:
    """As vLLM's engines tell them."""
    ids = post(client, "/tokenize", {"prompt": "the end", "add_special_tokens": False})["tokens"]
    content = [
        {"token_id": token, "logprob": -1.0, "rank": 1, "top_logprobs": [{"token_id": ids[-1], "logprob": -0.5}]}
        for token in ids
    ]
    answer = {"choices": [{"token_ids": ids, "logprobs": {"content": content}}]}
    told = post(client, f"{CHAT}/derender", {"generate_response": answer})["choices"][0]["logprobs"]["content"]
    assert "".join(one["token"] for one in told) == "the end" and told[0]["bytes"] == list(told[0]["token"].encode())
    assert {one["top_logprobs"][0]["token"] for one in told} == {told[-1]["token"]}
    many = [{"token_id": 5, "logprob": -1.0, "top_logprobs": [{"token_id": 6, "logprob": -1.0}] * 21}]
    refused = {"choices": [{"token_ids": [5], "logprobs": {"content": many}}]}
    error = post(client, f"{CHAT}/derender", {"generate_response": refused}, 400)["error"]
    assert error["param"] == "logprobs" and "at most 20 (--max-logprobs)" in error["message"]


def test_what_the_engine_says_beside_is_told(client: httpx.Client) -> None:
    beside = {"request_id": "r", "kv_transfer_params": {"a": 1}, "metrics": {"b": 2}, "prompt_logprobs": [None]}
    answer = {"choices": [{"token_ids": [300, 301]}], "prompt_token_ids": [5, 6, 7], **beside}
    body = {"generate_response": answer, "chat_request": {"messages": HI, "return_token_ids": True}}
    made = post(client, f"{CHAT}/derender", body)
    assert made["id"] == "r" and {name: made[name] for name in beside if name != "request_id"} == {
        name: value for name, value in beside.items() if name != "request_id"
    }
    assert made["prompt_token_ids"] == [5, 6, 7] and made["choices"][0]["token_ids"] == [300, 301]
    several = {"generate_responses": [answer, answer], "prompt_tokens": [5, 10]}
    usage = post(client, f"{TEXT}/derender", several)["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (15, 4, 19)
    error = post(client, f"{TEXT}/derender", several | {"prompt_tokens": [5]}, 400)["error"]
    assert error["param"] == "prompt_tokens"


def test_a_chunk_of_usage_alone(client: httpx.Client) -> None:
    chunk = {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 4}}
    asked = {"messages": HI, "return_token_ids": True}
    body = {"stream": True, "generate_chunk": chunk | {"prompt_token_ids": [5]}, "chat_request": asked}
    made = post(client, f"{CHAT}/derender", body | {"prompt_tokens": 9})["chunk"]
    assert made["prompt_token_ids"] == [5]
    assert made["choices"] == [] and made["usage"]["total_tokens"] == 13


def test_what_is_longer_than_the_model_takes(client: httpx.Client) -> None:
    choice = {"token_ids": [300]}
    answer = {"generate_responses": [{"choices": [choice]}], "prompt_token_ids": [[5] * 5000]}
    assert post(client, f"{TEXT}/derender", answer, 400)["error"]["param"] == "prompt_token_ids"
    told = {"content": [{"token_id": 5, "logprob": -1.0}] * 5000}
    answer = {"generate_responses": [{"choices": [choice | {"logprobs": told}]}]}
    assert post(client, f"{TEXT}/derender", answer, 400)["error"]["param"] == "logprobs"


def test_a_stream_with_stop_strings_is_refused(client: httpx.Client) -> None:
    chunk = {"choices": [{"token_ids": [300]}]}
    for path, name, request in ((CHAT, "chat_request", {"messages": HI}), (TEXT, "completion_request", {})):
        body = {"stream": True, "generate_chunk": chunk, name: request | {"stop": "a"}}
        assert post(client, f"{path}/derender", body, 400)["error"]["param"] == "stop"
    both = {"stream": True, "generate_chunk": chunk, "generate_response": {"choices": [{"token_ids": [5]}]}}
    assert post(client, f"{CHAT}/derender", both, 400)["error"]["param"] == "generate_response"
