"""Requests of a batch are cut out of a body, wherever its pieces end."""

from __future__ import annotations

import json
from time import process_time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorserve.http.anthropic.batches import requests as cutting
from actorserve.http.anthropic.batches.requests import RequestCutter
from actorserve.http.errors import ApiError

LONGEST = 10_000
JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text('ab"\\{}[],: \n\u00e9'),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text('ab"\\{[', max_size=3), inner, max_size=2),
    max_leaves=8,
)
OTHERS = st.dictionaries(st.text('kx"\\[', min_size=1, max_size=3), JSON, max_size=2)


def cut(body: bytes, step: int, longest: int = LONGEST) -> list[Any]:
    cutter = RequestCutter("/v1/messages", longest)
    lines = b"".join(cutter.take(body[at : at + step]) for at in range(0, len(body), step))
    cutter.finish()
    made = [json.loads(line) for line in lines.splitlines()]
    assert cutter.total == len(made)
    return made


@given(
    before=OTHERS,
    after=OTHERS,
    params=st.lists(st.dictionaries(st.text(max_size=3), JSON, max_size=3), min_size=1, max_size=4),
    step=st.sampled_from((1, 3, 50, LONGEST)),
    indent=st.sampled_from((None, 1)),
    ascii_only=st.booleans(),
)
def test_each_is_a_line(before: Any, after: Any, params: list[Any], step: int, indent: Any, ascii_only: bool) -> None:
    requests = [{"custom_id": f"r{index}", "params": one} for index, one in enumerate(params)]
    whole = before | {"requests": requests} | after
    body = json.dumps(whole, indent=indent, ensure_ascii=ascii_only).encode()
    common = {"method": "POST", "url": "/v1/messages"}
    assert cut(body, step) == [common | {"custom_id": one["custom_id"], "body": one["params"]} for one in requests]


A = b'{"custom_id": "a", "params": {}}'


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (b"", "The body is not valid JSON"),
        (b"[]", "Expected `object`"),
        (b"{}", "requests is missing"),
        (b'"abc', "The body is not valid JSON"),
        (b"}}}{", "The body is not valid JSON"),
        (b'{"requests": []}', "requests must be a list of at least one"),
        (b'{"requests": [null]}', "requests must be a list of at least one"),
        (b'{"requests": [%s, 5]}' % A, r"requests\[1\]: each request is an object"),
        (b'{"requests": [[%s]]}' % A, r"requests\[0\]: each request is an object"),
        (b'{"requests": %s}' % A, "requests: Expected `array`"),
        (b'{"requests": [%s], "requests": []}' % A, "be there once"),
        (b'{"requests": [%s' % A, "The body is not valid JSON"),
        (b'{"requests": [%s]' % A, "The body is not valid JSON"),
        (b'{"requests": [{"custom_id": "a"', "The body is not valid JSON"),
        (b'{"requests": [{"custom_id": "a"}]}', r"requests\[0\].params is missing"),
        (b'{"requests": [{"custom_id": "a", "params": 5}]}', r"requests\[0\].params"),
        (b'{"requests": [%s, {"custom_id": "", "params": {}}]}' % A, r"requests\[1\].custom_id: it is 1 to 64"),
        (b'{"requests": [{"custom_id": "a b", "params": {}}]}', r"requests\[0\].custom_id: it is 1 to 64"),
        (b'{"requests": [%s, %s]}' % (A, A), r"requests\[1\].custom_id: a is that of an earlier request"),
        (b'{"requests": [{"custom_id": "a", "params": {"\xff": 1}}]}', "not UTF-8"),
        (b'{"requests": [{"custom_id": "a", "params": {"x": %s}}]}' % (b"[" * 2000 + b"]" * 2000), "too deeply"),
    ],
)
@pytest.mark.parametrize("step", [2, LONGEST])
def test_what_is_wrong_is_told(body: bytes, said: str, step: int) -> None:
    with pytest.raises(ApiError, match=said) as raised:
        cut(body, step)
    assert raised.value.status == 400


def test_time_is_linear() -> None:
    """Eight times the string, in pieces, takes about eight times as long; to look at all of it again would take 64."""

    def seconds(length: int) -> float:
        begin = process_time()
        cut(b'{"requests": [{"custom_id": "a", "params": {"x": "%s"}}]}' % (b'y\\"' * (length // 3)), 1 << 16, 1 << 23)
        return process_time() - begin

    most = 24 * min(seconds(1 << 18) for _ in range(2))
    assert any(seconds(1 << 21) < most for _ in range(8)), "one run that nobody disturbed will do"


@pytest.mark.parametrize("step", [7, LONGEST])
def test_what_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch, step: int) -> None:
    monkeypatch.setattr(cutting, "MOST_AROUND", 60)
    long = b'{"custom_id": "b", "params": {"x": "%s"}}' % (b"y" * 100)
    for body in (b'{"requests": [%s, %s]}' % (A, long), b'{"requests": [%s, %s' % (A, long[:-10])):
        with pytest.raises(ApiError, match=r"requests\[1\] is longer than the 100 bytes") as raised:
            cut(body, step, 100)
        assert raised.value.status == 413
    for body in (b'{"x": [%s]}' % (b"1," * 100), b'{"requests": [%s]}' % (b" " * 100), b'{"%s' % (b"x" * 200)):
        with pytest.raises(ApiError) as raised:
            cut(body, step, 100)
        assert raised.value.status == 413, body
