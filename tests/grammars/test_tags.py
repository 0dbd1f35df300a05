"""Structural tags in both forms."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from actorserve.actors.grammar.compiler import GrammarError
from tests.grammars.drawing import accepts, answer, model
from tests.grammars.schemas import INTEGER, made
from tests.support.models.tokenizers_made import token_id

KINDS = ("demo", "byte level", "byte fallback")
JSON = {"type": "json_schema", "json_schema": made({"x": INTEGER})}
ANY = {"type": "any_text"}
LEGACY = {
    "structures": [
        {"begin": "<function=f>", "schema": made({"x": INTEGER}), "end": "</function>"},
        {"begin": "<function=g>", "schema": json.dumps(made({"y": INTEGER})), "end": "</function>"},
    ],
    "triggers": ["<function="],
}


def tag(begin: str, content: Any, end: Any) -> dict[str, Any]:
    return {"type": "tag", "begin": begin, "content": content, "end": end}


def const(value: str) -> dict[str, Any]:
    return {"type": "const_string", "value": value}


def sequence(*elements: Any) -> dict[str, Any]:
    return {"type": "sequence", "elements": list(elements)}


def either(*elements: Any) -> dict[str, Any]:
    return {"type": "or", "elements": list(elements)}


TAGS = {"tags": [tag("<a>", JSON, "</a>"), tag("<b>", ANY, "</b>")]}
TRIGGERED = {"type": "triggered_tags", "triggers": ["<a", "<b"]} | TAGS
SEPARATED = {"type": "tags_with_separator", "separator": ", "} | TAGS


def accepted(form: Any, *texts: str) -> list[bool]:
    """Which of some texts may be the answer; by the tokens of each kind of vocabulary."""
    found = []
    for kind in KINDS:
        of = model(kind)
        grammar = of.grammar(structural_tag=form)
        found.append([accepts(of, grammar, text) for text in texts])
    assert found[0] == found[1] == found[2]
    return found[0]


def of_format(wanted: Any) -> dict[str, Any]:
    return {"type": "structural_tag", "format": wanted}


GOOD: list[tuple[Any, list[str], list[str]]] = [
    (const("a b\n"), ["a b\n"], ["", "a b", "a b\nc"]),
    (JSON, ['{"x":1}'], ["", "{}"]),
    ({"type": "regex", "pattern": "a+/b"}, ["aa/b"], ["a/", "b"]),
    ({"type": "grammar", "grammar": 'root ::= "a" | "(" root ")"'}, ["((a))"], ["((a)"]),
    (ANY, ["", "x\n<y> {}"], []),
    (sequence(const("a"), const("b"), JSON, const("c")), ['ab{"x":1}c'], ['ab{"x":1}', "abc"]),
    (sequence(const("a"), ANY, const("<b"), const(">"), JSON), ['a<b{"<b>{"x":1}'], ['a<b>x<b>{"x":1}', "a"]),
    (sequence(), [""], ["a"]),
    (either(const("a"), JSON, sequence(const("b"), ANY)), ["a", '{"x":1}', "b", "bcd"], ["", "ab"]),
    (sequence(either(const("a"), const("b")), const("c")), ["ac", "bc"], ["a", "c", "abc"]),
    (tag("<t>", ANY, "</t>"), ["<t>x\ny</t>", "<t></t>"], ["<t>", "<t></t>x", "x<t></t>"]),
    (tag("<t>", ANY, ["</t>", "</u>"]), ["<t>x</t>", "<t>x</u>"], ["<t>x", "<t></t></u>", "<t></t>x"]),
    (tag("", JSON, ""), ['{"x":1}'], ["{}"]),
    (TRIGGERED, ["", "x", '<a>{"x":1}</a>', 'x<b>y</b>z<a>{"x":1}</a><b></b>'], ["<a>", "<ax", "<b>x", '<a>{"y"']),
    (TRIGGERED | {"stop_after_first": True}, ["", "x", "x<b>y</b>"], ["x<b>y</b>z", "<b></b><b></b>", "<a>"]),
    (TRIGGERED | {"at_least_one": True}, ["<b></b>", "<b></b>x<b></b>y"], ["", "x", "x<b></b>"]),
    (TRIGGERED | {"at_least_one": True, "stop_after_first": True}, ["<b></b>"], ["", "x<b></b>", "<b></b>x"]),
    (SEPARATED, ["", '<b></b>, <a>{"x":1}</a>'], ["x", "<b></b>,", "<b></b><b></b>", "<b></b>, "]),
    (SEPARATED | {"at_least_one": True}, ["<b></b>", "<b></b>, <b></b>"], [""]),
    (SEPARATED | {"stop_after_first": True}, ["", "<b></b>"], ["<b></b>, <b></b>"]),
    (tag("<all>", TRIGGERED, "</all>"), ["<all></all>", "<all>x<b>y</b>z</all>"], ["<all><b></all>", "<all></all>x"]),
]


@pytest.mark.parametrize(("wanted", "right", "wrong"), GOOD)
def test_formats(wanted: Any, right: list[str], wrong: list[str]) -> None:
    assert accepted(of_format(wanted), *right, *wrong) == [True] * len(right) + [False] * len(wrong)


def parts(text: str) -> list[tuple[str, Any]]:
    """The calls within a text; whatever looks like the beginning of one is one."""
    calls = re.findall(r"<function=(.)>(.*?)</function>", text, re.DOTALL)
    assert len(calls) == text.count("<function=")
    return [(name, json.loads(arguments)) for name, arguments in calls]


def test_random_legacy() -> None:
    called = 0
    for run in range(60):
        of = model(KINDS[run % 3])
        text = answer(of, of.grammar(structural_tag=LEGACY), run, "<function=")
        for name, arguments in parts(text):
            assert list(arguments) == [{"f": "x", "g": "y"}[name]]
            called += 1
    assert called >= 60


def test_special_tokens() -> None:
    """A mark that is a special token is drawn as this, not spelled."""
    of = model("demo")
    wanted = {"type": "triggered_tags", "triggers": ["<|im_start|>"], "tags": [tag("<|im_start|>f", JSON, "")]}
    grammar = of.grammar(structural_tag=of_format(wanted))
    start = token_id(of.tokenizer, "<|im_start|>")
    assert of.ids('x<|im_start|>f{"x":1}y').count(start) == 1
    assert accepts(of, grammar, 'x<|im_start|>f{"x":1}y') and not accepts(of, grammar, "x<|im_start|>g")
    assert accepts(of, of.grammar(structural_tag=of_format(const("a<|im_start|>b"))), "a<|im_start|>b")


def test_tokens_that_only_look_special_are_text() -> None:
    """Unless they are a mark, behind which only its tag may follow."""
    of = model("byte level")
    grammar = of.grammar(structural_tag=LEGACY)
    call = '<function=f>{"x":1}</function>'
    assert accepts(of, grammar, f"a<tool_call>b{call}<tool_call>c")
    assert not accepts(of, grammar, "a<s>b")
    marked = {"type": "triggered_tags", "triggers": ["<tool_call>"], "tags": [tag("<tool_call>", JSON, "")]}
    grammar = of.grammar(structural_tag=of_format(marked))
    assert accepts(of, grammar, 'a<tool_call>{"x":1}b') and not accepts(of, grammar, "a<tool_call>b")


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (of_format({"type": "qwen_xml_parameter", "json_schema": {}}), "qwen_xml_parameter"),
        (of_format({"type": "any_text", "excludes": ["x"]}), "excludes"),
        (of_format(sequence(ANY, JSON)), "free text"),
        (of_format(sequence(either(ANY, const("x")), const("y"))), "free text"),
        (of_format(TRIGGERED | {"triggers": ["<a"]}), "no trigger begins the tag '<b>'"),
        (of_format(TRIGGERED | {"tags": [tag("<a", ANY, "")]}), "needs an end"),
        (of_format(SEPARATED | {"tags": [tag("<a", ANY, "")]}), "needs an end"),
        (of_format(either()), "empty"),
        (of_format(TRIGGERED | {"tags": []}), "empty"),
        (of_format({"type": "json_schema", "json_schema": {}, "style": "qwen_xml"}), "qwen_xml"),
        ({"type": "structural_tag"}, "format"),
        ({"structures": [{"begin": "<a>", "schema": {}}], "triggers": []}, "end"),
        ({"structures": [{"begin": "<a>", "schema": "{", "end": ""}], "triggers": ["<a"]}, "structural_tag"),
        ("{", "structural_tag"),
    ],
)
def test_what_cannot_be_done_is_named(form: Any, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        model("demo").grammar(structural_tag=form)


def test_deep_formats() -> None:
    deep: Any = ANY
    for _ in range(40):
        deep = sequence(const("a"), deep)
    with pytest.raises(GrammarError, match="deep"):
        model("demo").grammar(structural_tag=of_format(deep))


def test_random_text_without_tags_is_free() -> None:
    of = model("demo")
    texts = {answer(of, of.grammar(structural_tag=LEGACY), seed) for seed in range(10)}
    assert len(texts) == 10
