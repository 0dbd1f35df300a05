"""Where a JSON value ends: as json finds it."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from actorserve.http.output.parsers.json_scan import JsonScan

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)


def scanned(text: str) -> tuple[int, bool, bool]:
    """How far in one go, and the same character by character."""
    scan, slow = JsonScan(), JsonScan()
    end, at = scan.push(text, 0), 0
    for char in text:
        at += slow.push(char, 0)
    assert (end, scan.done, scan.broken) == (at, slow.done, slow.broken)
    return end, scan.done, scan.broken


@settings(deadline=None)
@given(VALUES, st.sampled_from([None, 1]), st.booleans(), st.sampled_from(["}", "]", " x", ",", "<"]))
def test_finds_the_end(value: object, indent: int | None, ascii_only: bool, behind: str) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    assert scanned(f" {text}{behind}") == (len(text) + 1, True, False)
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
    assert scanned('{"a": True, "b": NaN, "c": 1.e+5x}') == (34, True, False)
