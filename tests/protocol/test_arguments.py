"""The beginning of an object that arguments are: what of them goes out, and what they are so far."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jiter import from_json

from actorserve.actors.protocol.topics.arguments import MAX_DEPTH, MAX_NUMBER, ObjectText
from tests.http.openai.responses.scripted import OBJECT


def nulled(value: Any) -> Any:
    """A value in which no number is beyond all floats."""
    if isinstance(value, dict):
        return {name: nulled(one) for name, one in value.items()}
    if isinstance(value, list):
        return [nulled(one) for one in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def taken(text: str) -> tuple[str, str]:
    arguments = ObjectText()
    return arguments.feed(text), arguments.object().decode()


@pytest.mark.parametrize(
    ("text", "goes_out", "so_far"),
    [
        ("", "", "{}"),
        (" \n", "", "{}"),
        (' {"a": 1} ', '{"a": 1}', '{"a": 1}'),
        ("{", "{", "{}"),
        ('{"a', '{"a', "{}"),
        ('{"a":', '{"a":', "{}"),
        ('{"a":"b', '{"a":"b', "{}"),
        ('{"a":1,"b":"c', '{"a":1,"b":"c', '{"a":1}'),
        ('{"a":12', '{"a":12', '{"a":12}'),
        ('{"a":12.', '{"a":12.', "{}"),
        ('{"a":[1,{"b":[true', '{"a":[1,{"b":[true', '{"a":[1,{"b":[true]}]}'),
        ('{"a":[1,{"b":[tru', '{"a":[1,{"b":[tru', '{"a":[1,{"b":[]}]}'),
        ('{"a":1}}', '{"a":1}', '{"a":1}'),
        ('{"a":1} {"b":2}', '{"a":1}', '{"a":1}'),
        ("[1]", "", "{}"),
        ("no", "", "{}"),
        ('{"a":1,}', '{"a":1,', '{"a":1}'),
        ('{"a":[1,]}', '{"a":[1,', '{"a":[1]}'),
        ('{"a" 1}', '{"a" ', "{}"),
        ("{a:1}", "{", "{}"),
        ('{"a":01}', '{"a":0', '{"a":0}'),
        ('{"a":-}', '{"a":-', "{}"),
        ('{"a":NaN}', '{"a":', "{}"),
        ('{"a":truth}', '{"a":tru', "{}"),
        ('{"a":[}', '{"a":[', '{"a":[]}'),
        ('{"a":"\n"}', '{"a":"', "{}"),
        ('{"a":"\\x"}', '{"a":"\\', "{}"),
        ('{"a":"\\u00g0"}', '{"a":"\\u00', "{}"),
        ('{"a":"\\ud83d\\ude00"}', '{"a":"\\ud83d\\ude00"}', '{"a":"\\ud83d\\ude00"}'),
        ('{"a":"\\ud83dx"}', '{"a":"\\ud83d', "{}"),
        ('{"a":"\\ud83d\\n"}', '{"a":"\\ud83d\\', "{}"),
        ('{"a":"\\ud83d\\u0041"}', '{"a":"\\ud83d\\u004', "{}"),
        ('{"a":"\\ude00"}', '{"a":"\\ude0', "{}"),
        (
            '{"a":1e400,"b":9999999999999999999999}',
            '{"a":1e400,"b":9999999999999999999999}',
            '{"a":null,"b":9999999999999999999999}',
        ),
        (
            '{"a":[-1E+400,"1e400",2e308],"b":1e308',
            '{"a":[-1E+400,"1e400",2e308],"b":1e308',
            '{"a":[null,"1e400",null],"b":1e308}',
        ),
        ('{"a":1,"b":1e400', '{"a":1,"b":1e400', '{"a":1,"b":null}'),
    ],
)
def test_examples(text: str, goes_out: str, so_far: str | None) -> None:
    assert taken(text) == (goes_out, text if so_far is None else so_far)


def test_a_number_beyond_all_floats_is_null_however_it_comes() -> None:
    arguments = ObjectText()
    assert "".join(map(arguments.feed, '{"a":1e400,"b":[1]}')) == '{"a":1e400,"b":[1]}'
    assert arguments.object() == b'{"a":null,"b":[1]}'


def test_nothing_follows_what_was_left() -> None:
    arguments = ObjectText()
    assert arguments.feed('{"a":1,x') == '{"a":1,'
    assert arguments.feed('"b":2}') == "" and arguments.object() == b'{"a":1}'


def test_depth_and_length_have_ends() -> None:
    deep = '{"a":' * (MAX_DEPTH + 1)
    assert taken(deep)[0] == '{"a":' * MAX_DEPTH
    assert taken('{"a":' + "1" * (MAX_NUMBER + 1))[0] == '{"a":' + "1" * MAX_NUMBER


@settings(max_examples=300)
@given(st.data())
def test_any_text_in_any_cuts(data: st.DataObject) -> None:
    """It is read as clients read it, at every event; a whole object is taken whole."""
    given_object = data.draw(OBJECT)
    text = json.dumps(given_object, ensure_ascii=data.draw(st.booleans()), indent=data.draw(st.sampled_from([None, 1])))
    place = data.draw(st.integers(0, len(text)))
    kind = data.draw(st.sampled_from(["whole", "cut", "spoilt"]))
    if kind == "cut":
        text = text[:place]
    elif kind == "spoilt":
        text = text[:place] + data.draw(st.sampled_from(list('{}[]",:\\.1-eu x'))) + text[place + 1 :]
    step = data.draw(st.integers(1, 7))
    arguments, out = ObjectText(), ""
    for begin in range(0, len(text), step):
        out += arguments.feed(text[begin : begin + step])
        assert not out or nulled(from_json(out.encode(), partial_mode=True)) == json.loads(arguments.object())
    assert (out, arguments.object().decode()) == taken(text)
    assert text.startswith(out)
    if kind == "whole":
        assert out == text and json.loads(arguments.object()) == given_object
