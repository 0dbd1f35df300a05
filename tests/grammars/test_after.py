"""Reasoning goes before what is wished for, and ends with its mark."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import pytest

from actorserve.actors.grammar.compiler import GrammarError
from tests.grammars.drawing import accepts, allowed, answer, model
from tests.grammars.schemas import INTEGER, made

SPELLED = "</think>"  # of several tokens, in each of these vocabularies
SPECIAL = "<|im_start|>"
ADDED = "<tool_call>"  # one token of `byte level`, which is not special
MARKS = [("demo", SPELLED), ("demo", SPECIAL), ("byte level", SPELLED), ("byte level", SPECIAL), ("byte level", ADDED)]
MARKS += [("byte fallback", SPELLED), ("byte fallback", SPECIAL)]
SCHEMA = made({"x": INTEGER})
BODIES: list[tuple[dict[str, Any], str]] = [
    ({"json_schema": SCHEMA}, r'\{\s*"x"\s*:\s*-?[0-9]+\s*\}'),
    ({"regex": "[a-c]{2,5}"}, "[a-c]{2,5}"),
    ({"choice": ["yes", "no"]}, "yes|no"),
    ({"grammar": 'root ::= "(" [0-9]+ ")"'}, r"\([0-9]+\)"),
    ({"tools": [{"name": "f", "parameters": SCHEMA}]}, r"\[.*\]"),
    ({"structural_tag": {"type": "structural_tag", "format": {"type": "const_string", "value": "a b"}}}, "a b"),
    ({"structural_tag": {"structures": [{"begin": "<f>", "schema": SCHEMA, "end": "</f>"}], "triggers": ["<f"]}}, ".*"),
]


@pytest.mark.parametrize(("kind", "mark"), MARKS)
def test_random_answers(kind: str, mark: str) -> None:
    """Random thinking seldom comes to its end by itself: the mark is put behind it."""
    of = model(kind)
    for at, (constraint, pattern) in enumerate(BODIES):
        grammar = of.grammar(after=mark, **constraint)
        for start in (mark, f'I think\nthat {{"x": }} </thin is\n\nright <f> {mark}'):
            text = answer(of, grammar, at, start)
            assert text.startswith(start)
            assert re.fullmatch(r"[\r\n]{0,8}(" + pattern + ")", text.removeprefix(start), re.DOTALL), text


@pytest.mark.parametrize(("kind", "mark"), MARKS)
def test_thinking_is_free(kind: str, mark: str) -> None:
    """Every token that could be drawn without a grammar may be drawn, but for the ends."""
    of = model(kind)
    matchers = of.matchers()
    matchers.place(0, of.grammar(json_schema=SCHEMA, after=mark))
    free = of.matchers()
    free.place(0, of.grammar(regex="(?s:.*)"))
    specials = set(of.grammars.words.specials.values())
    for token in of.ids("Let me see:\n\n"):
        words, plain = set(allowed(matchers, 0).tolist()), set(allowed(free, 0).tolist())
        assert words == (plain | specials) - set(of.ends)
        matchers.advance(0, token)
        free.advance(0, token)
    for special in specials - {of.tokenizer.token_to_id(mark)}:
        matchers.advance(0, special)
        assert set(of.ends).isdisjoint(allowed(matchers, 0).tolist())
        assert len(allowed(matchers, 0)) > of.tokenizer.get_vocab_size() / 2


@pytest.mark.parametrize(("kind", "mark"), MARKS)
def test_thinking_ends_with_its_first_mark(kind: str, mark: str) -> None:
    of = model(kind)
    grammar = of.grammar(json_schema=SCHEMA, after=mark)
    assert accepts(of, grammar, f'a{mark}\n\n{{"x":1}}')
    assert accepts(of, grammar, f'</{mark}{{"x":1}}')
    assert not accepts(of, grammar, f'a{mark}b{mark}{{"x":1}}')
    assert not accepts(of, grammar, f'a{mark}{mark}{{"x":1}}')
    assert not accepts(of, grammar, f"a{mark}" + "\n" * 9 + '{"x":1}')
    assert not accepts(of, grammar, f'a{mark} {{"x":1}}'), "the answer would begin with it"
    assert not accepts(of, grammar, '{"x":1}') and not accepts(of, grammar, f"a{mark}")


def test_a_special_mark_may_be_spelled() -> None:
    """A model that spells it out has ended its thinking, too: those who read its text take it for the end."""
    of = model("demo")
    matchers = of.matchers()
    matchers.place(0, of.grammar(json_schema=SCHEMA, after=SPECIAL))
    for part in ("a<", "|", "im_", "start", "|", ">"):
        for token in of.ids(part):
            assert token in allowed(matchers, 0)
            matchers.advance(0, token)
    text = of.tokenizer.decode(allowed(matchers, 0).tolist(), skip_special_tokens=False)
    assert re.fullmatch(r'[{"x\s]+', text)


def test_a_mark_within_one_token() -> None:
    """A token that ends the mark may go on with what is behind it."""
    of = model("demo")
    matchers = of.matchers()
    mark = '"'
    matchers.place(0, of.grammar(choice=['":', "x"], after=mark))
    (token,) = of.ids('":"') if len(of.ids('":"')) == 1 else of.ids('":')[:1]
    assert '"' in of.tokenizer.decode([token])
    words = {of.tokenizer.decode([word]) for word in np.asarray(allowed(matchers, 0)).tolist()}
    assert '"' in words and not any(
        word.startswith('"') and word[1:].strip() not in ("", "x", '"', '":') for word in words
    )


def test_a_mixed_mark_is_refused() -> None:
    with pytest.raises(GrammarError, match="mixes"):
        model("demo").grammar(json_object=True, after="x<|im_start|>")


def test_json_behind_thinking_parses() -> None:
    of = model("byte level")
    for seed in range(10):
        text = answer(of, of.grammar(json_object=True, after=SPELLED), seed, "thought " + SPELLED)
        assert isinstance(json.loads(text.split(SPELLED)[1]), dict)
