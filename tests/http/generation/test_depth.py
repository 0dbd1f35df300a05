"""Bodies that are nested too deeply, and what looks as if it were."""

from __future__ import annotations

import json
from typing import Any

import httpx2 as httpx
import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.depth import MAX_DEPTH, check_depth
from tests.http.fakes import finish_all
from tests.http.serving import Served
from tests.support.server import Server


def deep(levels: int, inner: str = "0") -> str:
    """So many, of both kinds in turn."""
    for level in range(levels):
        inner = f"[1, {inner}, []]" if level % 2 else f'{{"]}}": {inner}, "b": "\\\\"}}'
    return inner


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/completions", "/tokenize", "/v1/messages"])
@pytest.mark.parametrize("field", ["messages", "tools", "chat_template_kwargs", "user", "unknown"])
async def test_a_body_that_is_too_deep(served: Served, path: str, field: str) -> None:
    body = f'{{"model": "tiny", "prompt": "hi", "{field}": {deep(MAX_DEPTH)}}}'
    answer = await served.ask("POST", path, body.encode())
    assert answer.status == 400 and "nested too deeply" in answer.json["error"]["message"]
    assert served.engine.jobs.empty() and not served.engine.asked


async def test_a_body_of_just_the_depth(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", f'{{"prompt": "hi", "unknown": {deep(MAX_DEPTH - 1)}}}'.encode())
    finish_all(await served.job())
    assert (await client.answer()).status == 200


def depth_of(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(depth_of, value.values()), default=0)
    return 1 + max(map(depth_of, value), default=0) if isinstance(value, list) else 0


BRACKETS = st.text('[]{}"\\,: a\n\u20ac', max_size=6)
VALUES = st.recursive(
    BRACKETS | st.integers(0, 9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(BRACKETS, inner, max_size=3),
    max_leaves=40,
)


@given(VALUES, st.integers(MAX_DEPTH - 8, MAX_DEPTH + 2), BRACKETS, st.booleans())
def test_depth_is_that_of_the_value_whatever_strings_hold(
    value: Any, wrapped: int, name: str, ascii_only: bool
) -> None:
    for level in range(wrapped):
        value = [name, value] if level % 3 else {name: value, "]": "["}
    body = json.dumps(value, ensure_ascii=ascii_only).encode()
    if depth_of(value) <= MAX_DEPTH:
        assert check_depth(body) is body
    else:
        with pytest.raises(ApiError, match="nested too deeply"):
            check_depth(body)


def test_many_brackets_side_by_side_are_not_deep() -> None:
    for text in ('{"a": [' + ", ".join(["[{}]"] * 5000) + "]}", json.dumps({"a": "[{" * 5000}), "[" + "{" * 127):
        assert check_depth(text.encode())


def test_what_strings_hold_is_met_by_those_who_read_it() -> None:
    """JSON within JSON has no depth for the server's edge; no actor may fall over it."""
    writes_calls = "{% for m in messages %}{{ m.tool_calls | tojson }}{% endfor %}"
    with Server("--worker", "scripted", "--chat-template", writes_calls) as server:
        pids = server.pids()
        for levels in (100, 960, 980, 1000, 100_000):
            arguments = '{"a": ' + "[" * levels + "]" * levels + "}"
            call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": arguments}}
            spoken = {"messages": [{"role": "assistant", "tool_calls": [call]}], "max_tokens": 1}
            schema = '{"items": ' * levels + "{}" + "}" * levels
            wanted = {"prompt": "hi", "structured_outputs": {"json": schema}}
            for path, body in (("/v1/chat/completions", spoken), ("/v1/completions", wanted)):
                status, text = post(server.base_url + path, body)
                assert status == 400 or (status == 200 and levels < 1000 and body is spoken), text
                assert status == 200 or "recursion" in text or "deep" in text or "bytes" in text
        assert server.pids() == pids


def post(url: str, body: object) -> tuple[int, str]:
    answer = httpx.post(url, json=body, timeout=30)
    return answer.status_code, answer.text


@pytest.mark.parametrize("body", [b"[" * 300, b'["' * 300, b"]" * 300 + b"[" * 300, b'"' + b"[" * 300, b"[\\" * 300])
async def test_what_is_no_json_is_refused_in_any_case(served: Served, body: bytes) -> None:
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(body)
    assert (await served.ask("POST", "/v1/completions", body)).status == 400
