"""Where a JSON value ends: as json finds it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from actorserve.actors.protocol.topics.arguments import ObjectText
from actorserve.http.output.parsers.json_scan import JsonScan, mended

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def scanned(text: str) -> tuple[int, bool, bool]:
    """How far in one go, and the same character by character; what has come of it depends on no cuts."""
    scan, slow = JsonScan(), JsonScan()
    end, at, said = scan.push(text, 0), 0, ""
    for length, char in enumerate(text, 1):
        at += slow.push(char, 0)
        said += slow.take()
        assert said == mended(text[:length])
    assert (end, scan.done, scan.broken) == (at, slow.done, slow.broken)
    return end, scan.done, scan.broken


@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.sampled_from(["}", "]", " x", ",", "<"]))
def test_finds_the_end(value: object, indent: int | None, ascii_only: bool, behind: str) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert scanned(f" {text}{behind}") == (len(text) + 1, True, False)
    assert mended(text + behind) == text
    scan = JsonScan()
    for char in text[:-1]:
        assert scan.push(char, 0) == 1
        assert not scan.done and not scan.broken


@pytest.mark.parametrize(
    ("text", "end"),
    [
        ("}", 0),
        ("<", 0),
        ("{a", 1),
        ("{'a'", 1),
        ("{,", 1),
        ("{]", 1),
        ('{"a"}', 4),
        ('{"a":}', 5),
        ('{"a":1]', 6),
        ('{"a":1 "b"', 7),
        ('{"a":1,}', 7),
        ('{"a" "b"', 5),
        ("[1,]", 3),
        ("[1}", 2),
        ("[,", 1),
        ("[1 2", 3),
        ('["a"b', 4),
        ("[[]", 3),
    ],
)
def test_breaks_where_no_value_goes_on_so(text: str, end: int) -> None:
    assert scanned(text) == (end, False, text != "[[]")


def test_words_are_taken_as_they_are() -> None:
    assert scanned('{"a": Nones, "b": nan, "c": 1.e+5x}') == (35, True, False)
    assert mended('{"a": Nones, "b": nan, "c": 1.e+5x} ') == '{"a": Nones, "b": nan, "c": 1.e+5x}'


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": True, "b": [False, None], "c": None}', {"a": True, "b": [False, None], "c": None}),
        ('{"a": "True", "None": "\\\\"}', {"a": "True", "None": "\\"}),
        ('["a\nb\t\r\x01", "c\\\nd"]', ["a\nb\t\r\x01", "c\\\nd"]),
        (r'["\d+\.\w", "\\d", "it\'s", "\"\/\b"]', [r"\d+\.\w", r"\d", "it's", '"/\b']),
        (r'["C:\users", "\u00e9\u12", "\uD83D\uDE42", "\u"]', [r"C:\users", "é\\u12", "🙂", "\\u"]),
        ('{"a\nb": 1}', {"a\nb": 1}),
        ('[NaN, Infinity, -Infinity, -1, "NaN"]', [None, None, None, -1, "NaN"]),
        (r'["\uD83D", "\uDE42", "\uD83Dx", "\uD83D\n", "\uD83D\u0041"]', ["�", "�", "�x", "�\n", "�A"]),
        (r'["\uD83D\uD83D\uDE42", "\uD83D\u12"]', ["�🙂", "�\\u12"]),
    ],
)
def test_what_is_nearly_json_becomes_it(text: str, value: object) -> None:
    assert scanned(text) == (len(text), True, False)
    assert json.loads(mended(text)) == value


@pytest.mark.parametrize("text", ['{"a": NaN, "b": 1}', '{"a": -Infinity, "b": 1}', r'{"a": "\uD83D", "b": 1}'])
def test_what_is_said_is_an_object_to_who_reads_it_as_it_comes(text: str) -> None:
    """Clients of Anthropic's and Ollama's APIs get what of arguments is JSON: nothing of these is lost to them."""
    said = ObjectText()
    scan = JsonScan()
    for char in text:
        scan.push(char, 0)
        said.feed(scan.take())
    assert json.loads(said.object())["b"] == 1
