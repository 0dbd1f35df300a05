"""Rows: placed, filled, advanced, placed again."""

from __future__ import annotations

import logging
from typing import Any

import numpy as np
import pytest

from actorserve.actors.grammar.compiler import Constraint, make_grammar
from actorserve.actors.grammar.matchers import MANY
from tests.grammars.drawing import allowed, draw, model
from tests.grammars.schemas import EXPLODES, LOGIN, TREE, array

CONSTRAINTS: list[dict[str, Any]] = [
    {"json_schema": TREE},
    {"json_schema": LOGIN, "after": "</think>"},
    {"regex": r"(\w+ ){2,5}\w+"},
    {"choice": ["one", "two", "twofold"]},
    {"grammar": 'root ::= "a" | "(" root ")"'},
    {"structural_tag": {"structures": [{"begin": "<f>", "schema": {}, "end": "</f>"}], "triggers": ["<f>"]}},
]


@pytest.mark.parametrize("constraint", CONSTRAINTS)
@pytest.mark.parametrize("kind", ["demo", "byte fallback"])
def test_replay_is_the_same_at_every_position(constraint: dict[str, Any], kind: str) -> None:
    of = model(kind)
    grammar = of.grammar(**constraint)
    first = of.matchers()
    start = of.ids("so</think>" if "after" in constraint else "")
    first.place(3, grammar, start)
    answer = start + draw(of, first, 3, seed=7)
    first.place(3, grammar)
    again = of.matchers()
    for position, token in enumerate(answer):
        again.place(position, grammar, answer[:position])
        assert np.array_equal(allowed(first, 3), allowed(again, position))
        assert token in allowed(again, position)
        first.advance(3, token)


def test_rows_do_not_disturb_each_other() -> None:
    of = model("demo")
    grammar = of.grammar(json_schema=array({"enum": ["x", "y"]}, 1, 3))
    alone = []
    for seed in range(4):
        matchers = of.matchers()
        matchers.place(0, grammar)
        alone.append(draw(of, matchers, 0, seed))
    matchers = of.matchers()
    for row in range(4):
        matchers.place(row, grammar)
    for row in (2, 0, 3, 1):
        assert draw(of, matchers, row, row) == alone[row]


def test_fill_names_the_rows_that_have_a_grammar() -> None:
    of = model("demo")
    matchers = of.matchers()
    indices, bits = matchers.fill(np.array([5, 6]))
    assert indices.size == 0 and bits.shape == (0, -(-of.vocab_size // 32))
    matchers.place(9, of.grammar(choice=["a"]))
    matchers.place(2, of.grammar(choice=["b"]))
    indices, bits = matchers.fill(np.array([1, 2, 7, 9]))
    assert indices.tolist() == [1, 3] and bits.dtype == np.int32 and bits.shape == (2, -(-of.vocab_size // 32))
    for place, text in enumerate("ba"):
        words = np.flatnonzero(np.unpackbits(bits[place].view(np.uint8), bitorder="little"))
        assert words.tolist() == of.ids(text)
    matchers.drop(2)
    matchers.drop(2)
    assert matchers.fill(np.array([2, 9]))[0].tolist() == [1]
    matchers.place(9, of.grammar(choice=["c"]))
    assert allowed(matchers, 9).tolist() == of.ids("c")


def test_all_end_tokens_are_allowed_where_it_may_end() -> None:
    of = model("demo")
    matchers = of.matchers()
    matchers.place(0, of.grammar(choice=["a", "ab"]))
    assert allowed(matchers, 0).tolist() == [of.tokenizer.token_to_id("a")] + of.ids("ab")[:1] * (
        len(of.ids("ab")) == 1
    )
    matchers.advance(0, of.tokenizer.token_to_id("a") or 0)
    assert set(of.ends) < set(allowed(matchers, 0).tolist())
    matchers.advance(0, of.tokenizer.token_to_id("b") or 0)
    assert allowed(matchers, 0).tolist() == sorted(of.ends)


@pytest.mark.parametrize("end", [0, 1])
def test_behind_the_end_there_is_only_the_end(end: int, caplog: pytest.LogCaptureFixture) -> None:
    """A client may have told us to ignore end tokens."""
    of = model("demo")
    matchers = of.matchers()
    grammar = of.grammar(choice=["a"])
    drawn = [*of.ids("a"), of.ends[end], of.ends[0], 77]
    matchers.place(0, grammar)
    for token in drawn:
        matchers.advance(0, token)
    matchers.place(1, grammar, drawn)
    assert allowed(matchers, 0).tolist() == allowed(matchers, 1).tolist() == sorted(of.ends)
    assert not caplog.records


def failed(caplog: pytest.LogCaptureFixture, matchers: Any, row: int, of: Any) -> str:
    """The log's words, once it is sure that the row can only end, and says so once."""
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            assert allowed(matchers, row).tolist() == sorted(of.ends)
            matchers.advance(row, 5)
    (record,) = caplog.records
    return record.getMessage()


def test_a_token_that_is_not_allowed(caplog: pytest.LogCaptureFixture) -> None:
    of = model("demo")
    matchers = of.matchers()
    matchers.place(4, of.grammar(choice=["a"]))
    matchers.place(5, of.grammar(choice=["a"]))
    matchers.advance(4, of.ids("b")[0])
    assert "row 4" in failed(caplog, matchers, 4, of)
    assert allowed(matchers, 5).tolist() == of.ids("a")
    matchers.place(4, of.grammar(choice=["a"]))
    assert allowed(matchers, 4).tolist() == of.ids("a")


def test_a_replay_that_does_not_fit(caplog: pytest.LogCaptureFixture) -> None:
    of = model("demo")
    matchers = of.matchers()
    matchers.place(4, of.grammar(choice=["aaaa"]), of.ids("aab"))
    assert "drawn before" in failed(caplog, matchers, 4, of)


def test_a_token_beyond_the_vocabulary(caplog: pytest.LogCaptureFixture) -> None:
    of = model("demo")
    matchers = of.matchers()
    matchers.place(0, of.grammar(regex="a+"))
    matchers.advance(0, of.vocab_size + 1000)
    assert "range" in failed(caplog, matchers, 0, of)


@pytest.mark.parametrize("grammar", ["no grammar", "start: start", "start: A\nA: A"])
def test_a_grammar_that_does_not_compile(grammar: str, caplog: pytest.LogCaptureFixture) -> None:
    """The renderer refuses these. A worker that gets one all the same lives on."""
    of = model("demo")
    matchers = of.matchers()
    matchers.place(0, grammar)
    assert "row 0" in failed(caplog, matchers, 0, of)


def test_a_grammar_that_fails_on_the_way(caplog: pytest.LogCaptureFixture) -> None:
    """There are ever more ways in which it may have read what was drawn."""
    of = model("demo")
    matchers = of.matchers()
    matchers.place(0, make_grammar(Constraint(grammar='start: b{0,50} b{0,50}\nb: A b | "" | b b\nA: /a/')))
    (token,) = of.ids("a")
    drawn = 0
    while token in allowed(matchers, 0):
        assert not caplog.records
        matchers.advance(0, token)
        drawn += 1
    assert 4 < drawn < 1000
    assert "Current row has" in failed(caplog, matchers, 0, of)


def test_compiled_grammars_are_bounded() -> None:
    of = model("demo")
    matchers = of.matchers()
    for number in range(100):
        matchers.place(0, of.grammar(choice=[f"{number}"]))
    assert len(matchers._compiled) <= 32
    assert allowed(matchers, 0).tolist() == of.ids("9")


START = '{"a":"T'


def exploding() -> str:
    """A grammar that fails behind START, and not before. The renderer refuses it."""
    return make_grammar(Constraint(json_schema=EXPLODES))


def test_a_row_that_has_failed_is_told(caplog: pytest.LogCaptureFixture) -> None:
    of = model("demo")
    matchers = of.matchers()
    matchers.place(7, exploding())
    matchers.place(2, of.grammar(regex="a+"))
    rows = np.array([1, 2, 7])
    for token in of.ids(START):
        matchers.fill(rows)
        assert matchers.failed(rows).size == 0
        matchers.advance(7, token)
    matchers.fill(rows)
    assert matchers.failed(rows).tolist() == [7] and matchers.failed(rows).dtype == np.int32
    assert "too many expressions" in failed(caplog, matchers, 7, of)
    matchers.place(7, of.grammar(regex="a+"))
    assert matchers.failed(rows).size == 0 and allowed(matchers, 7).size


def test_a_failure_touches_neither_other_rows_nor_later_ones() -> None:
    """Their lexer is the same, and has failed with it."""
    of = model("demo")
    matchers = of.matchers()
    for row in (0, 1):
        matchers.place(row, exploding())
    before = allowed(matchers, 1)
    for token in of.ids(START):
        allowed(matchers, 0)
        matchers.advance(0, token)
    matchers.fill(np.array([0]))
    assert matchers.failed(np.array([0, 1])).tolist() == [0]
    matchers.place(2, exploding())
    for row in (1, 2):
        assert np.array_equal(allowed(matchers, row), before)
    assert matchers.failed(np.array([0, 1, 2])).tolist() == [0]


def test_a_row_that_is_placed_again_fails_where_it_did() -> None:
    """A worker's successor replays what was drawn, and comes to the same."""
    of = model("demo")
    drawn = of.ids(START)
    matchers = of.matchers()
    for count in range(len(drawn) + 1):
        matchers.place(0, exploding(), drawn[:count])
        matchers.fill(np.array([0]))
        assert bool(matchers.failed(np.array([0])).size) is (count == len(drawn))


def test_masks_of_many_rows_are_made_by_threads() -> None:
    """The same masks, of copies and of other grammars, at every step up to the ends, and beyond."""
    of = model("demo")
    grammars = [of.grammar(regex=f"[a-z]{{1,{3 + n % 5}}}") for n in range(MANY)]
    alone, together = of.matchers(), of.matchers(threads=2)
    rows = np.arange(MANY)
    for matchers in (alone, together):
        for row, grammar in enumerate(grammars):
            matchers.place(row, grammar)
    random = np.random.default_rng(5)
    for _ in range(9):
        _, wanted = alone.fill(rows)
        _, found = together.fill(rows)
        assert np.array_equal(found, wanted)
        for row in rows.tolist():
            token = int(random.choice(allowed(alone, row)))
            for matchers in (alone, together):
                matchers.advance(row, token)
    assert together._executor is not None and alone._executor is None


def test_what_threads_find_failed_touches_no_other_row() -> None:
    of = model("demo")
    alone, together = of.matchers(), of.matchers(threads=2)
    rows = np.arange(MANY)
    for matchers in (alone, together):
        for row in rows.tolist():
            matchers.place(row, exploding() if row < 3 else of.grammar(regex="a+"))
        for token in of.ids(START):
            matchers.fill(rows)
            matchers.advance(1, token)
        assert matchers.failed(rows).size == 0
    _, wanted = alone.fill(rows)
    _, found = together.fill(rows)
    assert np.array_equal(found, wanted)
    assert alone.failed(rows).tolist() == together.failed(rows).tolist() == [1]


def test_copies_of_one_grammar_need_no_threads() -> None:
    """They would wait for each other."""
    of = model("demo")
    matchers = of.matchers(threads=2)
    for row in range(MANY):
        matchers.place(row, of.grammar(regex="a+"))
    matchers.fill(np.arange(MANY))
    assert matchers._executor is None
