"""Regular expressions, choices, and grammars that clients wrote themselves."""

from __future__ import annotations

import re

import pytest

from actorserve.actors.grammar.compiler import GrammarError
from tests.grammars.drawing import accepts, answer, model

KINDS = ("demo", "byte level", "byte fallback")
PATTERNS = [
    r"[a-z]{3,8}@[a-z]{2,6}\.(com|org)",
    r"\d{4}-\d{2}-\d{2}",
    r"(\w{1,9} ){2,4}\w{1,9}",
    r"^(yes|no|maybe)$",
    r"a/b\n[^\n]{0,10}\n",
    r"[äöüß]{1,3}|[一-龥]{2}|🙂+x",
    r"\s*\S{1,5}\s",
    r"(?i:hello), \"world\"!?",
    r"(0|[1-9][0-9]*)(\.[0-9]{1,3})?x",
    r"#[0-9A-Fa-f]{6}|\$\{[a-z]+\}",
    r".{5,20}",
]


@pytest.mark.parametrize("pattern", PATTERNS)
def test_regular_expressions(pattern: str) -> None:
    for run in range(9):
        of = model(KINDS[run % 3])
        text = answer(of, of.grammar(regex=pattern), run)
        assert re.fullmatch(pattern, text), text


@pytest.mark.parametrize("pattern", ["(?=a)b", r"(a)\1", r"\bword", "(", "[z-a]", "a{3,1}"])
def test_what_is_no_regular_expression(pattern: str) -> None:
    with pytest.raises(GrammarError, match="regex"):
        model("demo").grammar(regex=pattern)


def test_choices() -> None:
    texts = ["yes", "no", "yes, but", "", 'quo"te', "back\\slash", "two\nlines", "grün 🙂", "a/b", "\x00\x7f", "(x|y)*"]
    for kind in KINDS:
        of = model(kind)
        grammar = of.grammar(choice=texts)
        seen = {answer(of, grammar, seed) for seed in range(40)}
        assert seen <= set(texts) and len(seen) > 4
        assert all(accepts(of, grammar, text) for text in texts)
        assert not accepts(of, grammar, "yes,") and not accepts(of, grammar, "x")


def test_a_choice_of_thousands() -> None:
    of = model("demo")
    grammar = of.grammar(choice=[f"value {number}" for number in range(5000)])
    assert accepts(of, grammar, "value 4999") and not accepts(of, grammar, "value 5000")


LARK = """
?start: sum
sum: product (("+" | "-") product)*
product: atom ("*" atom)*
atom: NUMBER | "(" sum ")"
NUMBER: /[0-9]{1,3}/
%ignore /[ ]{1,2}/
"""
GBNF = r"""
root ::= sum
sum ::= product (("+" | "-") product)*   # a comment
product ::= atom ("*" atom)*
atom ::= number | "(" sum ")"
number ::= [0-9] ([0-9] [0-9]?)?
"""


@pytest.mark.parametrize("grammar", [LARK, GBNF])
def test_sums(grammar: str) -> None:
    for run in range(9):
        of = model(KINDS[run % 3])
        text = answer(of, of.grammar(grammar=grammar), run)
        assert re.fullmatch(r"[0-9+*() -]+", text)
        eval(re.sub(r"\b0+(?=[0-9])", "", text))  # Python's sums have no leading zeros


def test_escapes_in_gbnf() -> None:
    of = model("demo")
    grammar = of.grammar(grammar=r'root ::= "\u00e9\x41\"\\x41" [\u4e00-\u4e10\x5d] "\n"')
    assert accepts(of, grammar, 'éA"\\x41\u4e05\n')
    assert accepts(of, grammar, 'éA"\\x41]\n')
    assert not accepts(of, grammar, 'éA"\\x41-\n')
    line = of.grammar(
        grammar=r'root ::= [^\r\n\x0b\u000c\u0085\u2028\u2029\U0001F600]{3} "\u000a\x22\u005c\U0000002f\u0085"'
    )
    assert accepts(of, line, 'a-ü\n"\\/\x85')
    assert not any(accepts(of, line, f'a{bad}ü\n"\\/\x85') for bad in "\r\n\x0b\x0c\x85\u2028\u2029😀")


@pytest.mark.parametrize(
    ("grammar", "reason"),
    [
        ('root ::= "a', "neither Lark nor GBNF"),
        ("root ::= other", "not found"),
        ("main ::= [a-z]", "No 'root' rule"),
        ('root ::= "x" \\', "neither"),
        ("root ::= " + "(" * 3000, "neither"),
        ("start: other", "other"),
        ("start: A\nA: A", "circular"),
        ("", "start"),
        ("start: start", "no text"),
    ],
)
def test_what_is_no_grammar(grammar: str, reason: str) -> None:
    with pytest.raises(GrammarError, match=reason):
        model("demo").grammar(grammar=grammar)
