"""Requests that no client should send: each is refused in the API's own form, and the next client is served."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from .launched import Launched
from .wire import Answer, Connection, Cut

LAST = re.compile("the-last-one")
CHAT = "/v1/chat/completions"
USER = [{"role": "user", "content": "Hi"}]
NUMBERS: tuple[Any, ...] = (-1, 10**20, -(10**20), 1e308, "1", True, [], {}, [1], "NaN", "x" * 10_000)
FIELDS = (
    *("temperature", "top_p", "top_k", "min_p", "max_tokens", "n", "seed", "stop", "logit_bias", "logprobs"),
    *("top_logprobs", "presence_penalty", "repetition_penalty", "stream", "stream_options", "messages", "model"),
    *("tools", "tool_choice", "response_format", "bad_words", "allowed_token_ids", "stop_token_ids", "request_id"),
    *("priority", "cache_salt", "chat_template_kwargs", "structured_outputs", "user", "metadata", "min_tokens"),
    *("truncate_prompt_tokens", "prompt_logprobs", "thinking_token_budget", "top_n_sigma", "typical_p"),
)
PATHS = (
    *(CHAT, "/v1/completions", "/v1/responses", "/v1/messages", "/v1/messages/count_tokens", "/tokenize"),
    *("/detokenize", "/inference/v1/generate"),
)
BODIES: tuple[bytes, ...] = (
    *(b"", b"{", b"null", b"[]", b'"x"', b"1e999", b"{}" * 2, b"\xff\xfe", b'{"a":' * 5000, b"[" * 200_000),
    *(b'{"messages": NaN}', b'{"prompt": "\\ud800"}', b'{"model": "\\u0000"}', b'{"messages": [[]]}'),
    json.dumps({"messages": USER, "tools": [{"type": "function", "function": {"name": "x\n\x1b[31m"}}]}).encode(),
    json.dumps({"messages": USER, "response_format": {"type": "json_schema", "json_schema": {}}}).encode(),
    json.dumps({"prompt": [[2**31]], "max_tokens": 1}).encode(),
)
SCHEMAS: tuple[Any, ...] = (
    {"pattern": r"(?=a)b"},
    {"$ref": "#"},
    {"type": "string", "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)", "minLength": 1, "maxLength": 5000},
    {"type": "array", "minItems": 10**9},
    {"allOf": [{"anyOf": [{"const": i} for i in range(200)]}] * 8},
    {"type": "nothing"},
    7,
)
POST = b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n"
RAW: tuple[tuple[bytes, tuple[int, ...]], ...] = (  # bytes, and which statuses are right; 0: the connection's end
    (b"GET / HTTP/2.0\r\nHost: x\r\n\r\n", (400, 505)),
    (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", (400, 505, 0)),
    (b"GET /health HTTP/1.1\r\n\r\n", (200, 400)),
    (
        POST + b"Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        (400, 501),
    ),
    (POST + b"Expect: 200-ok\r\nContent-Length: 2\r\n\r\n{}", (417,)),
    (
        POST + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\nffffffffffffffff\r\n",
        (400, 413),
    ),
    (POST + b"Content-Length: 99999999999\r\n\r\n", (413,)),
    (POST + b"Content-Length: -1\r\n\r\n", (400,)),
    (POST + b"Content-Length: 1\r\nContent-Length: 2\r\n\r\n", (400,)),
    (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n", (400, 414, 431)),
    (b"GET / HTTP/1.1\r\nHost: x\r\nX: " + b"a" * 100_000 + b"\r\n\r\n", (400, 431)),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", (400, 0)),
    (b"GET\r\n\r\n", (400, 0)),
)


def _bodies() -> Iterator[tuple[str, bytes]]:
    for path in PATHS:
        for body in BODIES:
            yield path, body
    for field in FIELDS:
        for value in NUMBERS:
            yield CHAT, json.dumps({"messages": USER, "max_tokens": 1, field: value}).encode()
    for schema in SCHEMAS:
        form = {"type": "json_schema", "json_schema": {"name": "x", "schema": schema}}
        yield CHAT, json.dumps({"messages": USER, "max_tokens": 4, "response_format": form}).encode()


def _is_form(answer: Answer) -> bool:
    """JSON, or a stream where `stream` was true."""
    return bool(answer.events) if "event-stream" in answer.headers.get("content-type", "") else answer.json is not None


def hostile() -> Counter[str]:
    """Broken bodies, odd values, raw bytes: no 500, no silence, nothing forged in the log, nobody dies."""
    found: Counter[str] = Counter()
    with Launched("--enable-log-requests", "--max-model-len", "512") as server:
        before = server.actors("")
        for path, body in _bodies():
            answer = server.ask("POST", path, body)
            if answer.status in (200, 400, 404, 413, 422):
                found["right" if _is_form(answer) else f"no JSON for {path} {body[:60]!r}"] += 1
            else:
                found[f"{answer.status} for {path} {body[:60]!r}"] += 1
        for data, statuses in RAW:
            with Connection(server.address, 20.0) as connection:
                connection.send(data)
                try:
                    status = connection.answer().status
                except Cut:
                    status = 0
                except TimeoutError:
                    status = -1
            found["right" if status in statuses else f"{status} for {data[:60]!r}"] += 1
        forged = {"messages": USER, "max_tokens": 1, "request_id": "x\nsupervisor    | forged\x1b[2J" + "y" * 100_000}
        server.ask("POST", CHAT, json.dumps(forged).encode())
        server.ask("POST", CHAT, {"messages": USER, "max_tokens": 1, "request_id": "the-last-one"})
        server.wait_for_line(LAST.search, 20.0)
        bad = [
            line
            for line in server.lines
            if ("forged" in line and "request x" not in line) or "\x1b" in line or len(line) > 20_000
        ]
        found["right" if not bad else f"the log has {bad[0][:60]!r}"] += 1
        found["right" if server.actors("") == before else "an actor died"] += 1
    return found
