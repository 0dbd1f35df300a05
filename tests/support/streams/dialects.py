"""Requests of other APIs than OpenAI's whose streams are cut, and what a client of theirs has in the end."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from typing import Any

from .cases import ASKED, CITY, ONCE, TOOL, WARM

Object = dict[str, Any]
OLLAMA_CHAT, OLLAMA_TEXT = "/api/chat", "/api/generate"
COHERE, LLAMA, SGLANG, INVOCATIONS = "/v2/chat", "/completion", "/generate", "/invocations"
COHERE_V1, TGI = "/v1/chat", "/"
MESSAGES = ASKED["messages"]
TIMED = (
    "total_duration",
    "load_duration",
    "prompt_eval_duration",
    "eval_duration",
    "created_at",
    "timings",
    "e2e_latency",
)
UNLIKE = ("id", "logprobs", "completion_probabilities")
PLACED = ("id_slot", "tokens_cached", "cached_tokens")  # of the server that has made them
DIALECTS: dict[str, tuple[str, Object]] = {
    "ollama chat": (OLLAMA_CHAT, {"messages": MESSAGES, "options": {"temperature": 1, "num_predict": 40}}),
    "ollama logprobs": (OLLAMA_CHAT, {"messages": MESSAGES, "logprobs": True, "top_logprobs": 2,
                                      "options": {"num_predict": 30}}),
    "ollama schema": (OLLAMA_CHAT, {"messages": MESSAGES, "format": CITY, "options": {"num_predict": 60}}),
    "ollama context": (OLLAMA_TEXT, {"prompt": MESSAGES[-1]["content"], "context": [5, 7], "options": {
        "temperature": 1, "num_predict": 40}}),
    "ollama raw": (OLLAMA_TEXT, {"prompt": "Once upon a time", "raw": True, "options": {
        "temperature": 1.1, "num_predict": 60, "stop": ["ing", "er "], "repeat_penalty": 1.3}}),
    "cohere chat": (COHERE, {**ASKED, "temperature": 1, "frequency_penalty": 0.7}),
    "cohere logprobs": (COHERE, {**ASKED, "temperature": 1, "logprobs": True}),
    "cohere tool": (COHERE, {**ASKED, "tools": [TOOL], "tool_choice": "REQUIRED", "max_tokens": 80}),
    "cohere v1": (COHERE_V1, {"message": MESSAGES[-1]["content"], "temperature": 1, "max_tokens": 40}),
    "llama.cpp": (LLAMA, {"prompt": ONCE["prompt"], "n_predict": 40, "temperature": 1.1, "ignore_eos": True}),
    "llama.cpp stop": (LLAMA, {"prompt": ONCE["prompt"], "n_predict": 80, "temperature": 1, "stop": ["ing"],
                               "n_probs": 2, "repeat_penalty": 1.2}),
    "sglang": (SGLANG, {"text": ONCE["prompt"], "rid": "one", "sampling_params": {
        "temperature": 1.1, "max_new_tokens": 60, "stop": ["ing", "er "], "repetition_penalty": 1.2}}),
    "tgi": (TGI, {"inputs": ONCE["prompt"], "parameters": {
        "temperature": 1.1, "max_new_tokens": 60, "stop": ["ing", "er "], "details": True, "top_n_tokens": 2}}),
    "invocations": (INVOCATIONS, {**ONCE, **WARM}),
}  # fmt: skip


def _without(record: Object) -> Object:
    """A record, as every server makes it."""
    kept = {name: value for name, value in record.items() if name not in (*TIMED, *PLACED)}
    return {name: _without(value) if isinstance(value, dict) else value for name, value in kept.items()}


def ollama_answer(stream: bytes) -> Object:
    """Texts joined, calls and logprobs in their order, and the last record."""
    records = [_without(json.loads(line)) for line in stream.splitlines()]
    said: Object = {"content": "", "thinking": "", "response": "", "calls": [], "logprobs": []}
    for record in records:
        made = record.pop("message", record)
        for name in ("content", "thinking", "response"):
            said[name] += made.pop(name, "")
        said["calls"] += made.pop("tool_calls", [])
        said["logprobs"] += [(one["token"], round(one["logprob"], 3)) for one in record.pop("logprobs", [])]
    assert not any(record["done"] for record in records[:-1])
    return said | {"last": records[-1]}


def _events(stream: bytes) -> list[Object]:
    return [json.loads(line[6:]) for line in stream.decode().split("\n") if line.startswith("data: {")]


def cohere_answer(stream: bytes) -> list[Any]:
    """Its events, neighbours of one kind and place joined."""
    found: list[Any] = []
    for event in _events(stream):
        kind, message = (event["type"], event.get("index")), (event.get("delta") or {}).get("message") or {}
        if not event["type"].endswith("-delta"):
            found.append((kind, _without(event)))
            continue
        if not found or found[-1][0] != kind:
            found.append((kind, {"text": "", "logprobs": []}))
        (holder,) = message.values()
        text = holder.get("text", holder.get("thinking")) if "function" not in holder else holder["function"]
        found[-1][1]["text"] += text if isinstance(text, str) else text["arguments"]
        told = event.get("logprobs") or {"token_ids": [], "logprobs": []}
        found[-1][1]["logprobs"] += zip(told["token_ids"], (round(one, 3) for one in told["logprobs"]), strict=True)
    return found


def cohere_v1_answer(stream: bytes) -> Object:
    """Texts and calls joined, and the last line, which says all of it again."""
    first, *lines, last = [_without(json.loads(line)) for line in stream.splitlines()]
    text = "".join(line["text"] for line in lines if line["event_type"] == "text-generation")
    assert text == last["response"]["text"] and last["is_finished"]
    assert first["event_type"] == "stream-start" and first["generation_id"] == last["response"]["generation_id"]
    chunks = [line["tool_call_delta"] for line in lines if line["event_type"] == "tool-calls-chunk"]
    calls = [[one["name"] for one in chunks if "name" in one], "".join(one.get("parameters", "") for one in chunks)]
    return {"calls": calls, "last": last}


def llama_answer(stream: bytes) -> Object:
    """Text and tokens joined, and the last event."""
    events = [_without(event) for event in _events(stream)]
    told = [one for event in events for one in event.pop("completion_probabilities", [])]
    assert not any(event["stop"] for event in events[:-1])
    assert all(a["tokens_predicted"] <= b["tokens_predicted"] for a, b in itertools.pairwise(events))
    return {
        "text": "".join(event.pop("content") for event in events),
        "tokens": [token for event in events for token in event.pop("tokens")],
        "logprobs": [(one["id"], round(one["logprob"], 3)) for one in told],
        "last": events[-1],
    }


def sglang_answer(stream: bytes) -> Object:
    """The last event: each says all that has come so far."""
    *events, last = [_without(event) for event in _events(stream)]
    assert all(b["text"].startswith(a["text"]) for a, b in itertools.pairwise([*events, last]))
    return last


def tgi_answer(stream: bytes) -> Object:
    """The tokens, each with its number, and the last event's text."""
    *events, last = _events(stream)
    tokens = [(one["token"]["id"], one["token"]["text"]) for one in (*events, last)]
    assert [event["index"] for event in (*events, last)] == list(range(1, len(tokens) + 1))
    assert not any(event["generated_text"] or event["details"] for event in events)
    assert all(len(event["top_tokens"]) == 2 for event in (*events, last))
    assert "".join(text for _, text in tokens).startswith(last["generated_text"])  # the last may go on behind a stop
    return {"tokens": tokens, "text": last["generated_text"], "details": last["details"]}


def whole_answer(path: str, answer: Any) -> Any:
    """What is the same in each answer that is not streamed, without logprobs, which engines add in other orders."""
    if path == TGI:
        return answer[0]["generated_text"]
    if path in ANSWERS:
        return {name: one for name, one in _without(answer).items() if name not in UNLIKE}
    return [{key: one for key, one in choice.items() if key != "logprobs"} for choice in answer["choices"]]


def seeded(path: str, fields: Object) -> Object:
    """With a seed where this API has it."""
    if path in (OLLAMA_CHAT, OLLAMA_TEXT):
        return {**fields, "options": {**fields["options"], "seed": 9}}
    if path == SGLANG:
        return {**fields, "sampling_params": {**fields["sampling_params"], "sampling_seed": 9}}
    if path == TGI:
        return {**fields, "parameters": {**fields["parameters"], "seed": 9}}
    return {**fields, "seed": 9}


ANSWERS: dict[str, Callable[[bytes], Any]] = {
    OLLAMA_CHAT: ollama_answer,
    OLLAMA_TEXT: ollama_answer,
    COHERE: cohere_answer,
    COHERE_V1: cohere_v1_answer,
    LLAMA: llama_answer,
    SGLANG: sglang_answer,
    TGI: tgi_answer,
}
