"""Requests of all kinds, whose streams are cut by tests and by tools/chaos/replicas."""

from __future__ import annotations

from typing import Any

CHAT, TEXT, MESSAGES, TOKENS = "/v1/chat/completions", "/v1/completions", "/v1/messages", "/inference/v1/generate"
RESPONSES = "/v1/responses"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "How do I set an API key?"}], "max_tokens": 40}
ONCE: dict[str, Any] = {"prompt": "Once upon a time", "max_tokens": 40}
WARM: dict[str, Any] = {"temperature": 1.1, "ignore_eos": True}
CITY = {
    "type": "object",
    "properties": {"name": {"type": "string", "maxLength": 12}, "people": {"type": "integer"}},
    "required": ["name", "people"],
}
TOOL = {"type": "function", "function": {"name": "look_up", "parameters": CITY}}
WITH_USAGE = {"include_usage": True}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": (TEXT, {**ONCE, **WARM}),
    "greedy chat": (CHAT, {**ASKED, "temperature": 0}),
    "three choices": (TEXT, {**ONCE, **WARM, "n": 3, "seed": 5}),
    "two prompts": (TEXT, {**WARM, "prompt": ["Once", "The capital of"], "n": 2, "max_tokens": 16}),
    "penalties": (TEXT, {**ONCE, **WARM, "frequency_penalty": 1.5, "presence_penalty": 1, "repetition_penalty": 1.3}),
    "biases": (TEXT, {**ONCE, **WARM, "logit_bias": {"40": 4, "41": -50}, "bad_words": ["the", "a"]}),
    "least tokens": (CHAT, {**ASKED, "temperature": 1, "min_tokens": 25, "n": 2}),
    "stop strings": (TEXT, {**ONCE, **WARM, "max_tokens": 120, "stop": ["ing", "er "], "n": 3}),
    "logprobs": (TEXT, {**ONCE, **WARM, "logprobs": 3}),
    "chat logprobs": (CHAT, {**ASKED, "temperature": 1, "logprobs": True, "logprob_token_ids": [300, 5, 7]}),
    "ids": (CHAT, {**ASKED, "temperature": 1, "return_token_ids": True}),
    "schema": (CHAT, {**ASKED, "temperature": 1.2, "response_format": {
        "type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": True}}}),
    "pattern": (TEXT, {**ONCE, "temperature": 1.2, "structured_outputs": {"regex": "[a-z]{6,9}( [0-9]{2}){5}"}}),
    "forced tool": (CHAT, {**ASKED, "temperature": 1.2, "tools": [TOOL], "max_tokens": 60,
                           "tool_choice": {"type": "function", "function": {"name": "look_up"}}}),
    "required tool": (CHAT, {**ASKED, "temperature": 1.2, "tools": [TOOL], "tool_choice": "required",
                             "max_tokens": 80}),
    "echo": (TEXT, {**ONCE, **WARM, "echo": True}),
    "by twos": (TEXT, {**ONCE, **WARM, "stream_interval": 3}),
}  # fmt: skip
