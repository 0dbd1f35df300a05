"""Grammars behind thinking whose marks are of several special tokens: gpt-oss' channels, Gemma 4's, Kimi K3's."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
from tokenizers import Tokenizer

from actorserve.actors.grammar.compiler import Grammars
from actorserve.http.output.events import Turn
from actorserve.http.output.parsers.registry import THINK_MARKERS, make_parser
from tests.grammars.drawing import Model, accepts, answer, model
from tests.grammars.schemas import INTEGER, made
from tests.support.models.tokenizers_made import byte_level, token_id

MARKS = {
    "openai_gptoss": "<|start|> <|end|> <|message|> <|channel|> <|constrain|>",
    "gemma4": "<|channel> <channel|>",
    "kimi_k3": "<|open|> <|close|> <|sep|>",
}
SCHEMA = made({"x": INTEGER})
THOUGHT = "<|channel|>analysis<|message|>Hm, {x: 1}?<|end|><|start|>assistant"
SPOKEN = "<|channel|>commentary<|message|>I look.<|end|><|start|>assistant"
FINAL = "<|channel|>final<|message|>"
CALL = '<|channel|>commentary to=functions.f <|constrain|>json<|message|>{"x":1}'
TOOLS = [{"name": "f", "parameters": SCHEMA}, {"name": "f2"}]


@cache
def with_marks(reasoning: str) -> Model:
    """A vocabulary with the marks of this model, each one token. gpt-oss ends calls with an end token."""
    tokenizer = Tokenizer.from_str(byte_level().to_str())
    tokenizer.add_special_tokens([*MARKS[reasoning].split(), "<|call|>"])
    ends = [token_id(tokenizer, "</s>"), token_id(tokenizer, "<|call|>")]
    size = tokenizer.get_vocab_size()
    return model("byte level")._replace(
        tokenizer=tokenizer, vocab_size=size, ends=ends, grammars=Grammars(tokenizer, size, ends)
    )


def behind_thinking(reasoning: str, inside: bool = False, **constraint: Any) -> tuple[Model, str]:
    start, end = THINK_MARKERS[reasoning]
    of = with_marks(reasoning)
    return of, of.grammar(after=end, before=None if inside or reasoning == "openai_gptoss" else start, **constraint)


@pytest.mark.parametrize(
    "constraint", [{"json_schema": SCHEMA}, {"regex": r'\{"x":\d+\}'}, {"choice": ['{"x":1}', "x"]}]
)
def test_an_answer_in_the_final_channel(constraint: dict[str, Any]) -> None:
    of, grammar = behind_thinking("openai_gptoss", **constraint)
    body = '{"x":1}'
    for before in ("", THOUGHT, THOUGHT + SPOKEN, "Hm.<|end|><|start|>assistant", "Hm."):
        assert accepts(of, grammar, before + FINAL + body)
    assert accepts(of, grammar, THOUGHT + "<|channel|>final <|constrain|>json<|message|>" + body)
    assert accepts(of, grammar, THOUGHT.partition("<|end|>")[0] + FINAL + body)  # a budget has ended it
    for wrong in (
        *(body, THOUGHT + body, "<|message|>" + body, THOUGHT + "<|channel|>final" + body),
        *(FINAL, FINAL + '{"y":1}', FINAL + body + "<|end|>", FINAL + "So: " + body, CALL),
        *("<|channel|>analysis<|message|>" + body, "<|channel|>secret<|message|>a<|end|>" + FINAL + body),
        f"{SPOKEN}<|channel|>commentary to=functions.f<|message|>{{}}<|end|><|start|>assistant{FINAL}{body}",
    ):
        assert not accepts(of, grammar, wrong), wrong


@pytest.mark.parametrize("before", ["", THOUGHT, THOUGHT + SPOKEN])
def test_calls_in_their_channel(before: str) -> None:
    of, grammar = behind_thinking("openai_gptoss", tools=TOOLS, channels=True)
    assert accepts(of, grammar, before + CALL) and accepts(of, grammar, before + CALL.replace(" <|constrain|>", " "))
    earlier = ' to=functions.f<|channel|>commentary json<|message|>{"x":1}'
    assert accepts(of, grammar, before + earlier) and not accepts(of, grammar, before + earlier.replace("x", "y"))
    for wrong in (
        *(CALL[:-7], CALL.replace("functions.f", "functions.g"), CALL.replace('"x"', '"y"'), FINAL + '{"x":1}'),
        *(CALL.replace("commentary", "analysis"), CALL + CALL, CALL + "<|end|>", CALL.replace(" to=functions.f", "")),
    ):
        assert not accepts(of, grammar, before + wrong), wrong


def test_a_call_in_the_place_of_an_answer() -> None:
    of, grammar = behind_thinking("openai_gptoss", json_object=True, instead=TOOLS)
    assert all(accepts(of, grammar, THOUGHT + text) for text in (CALL, FINAL + '{"y":1}'))
    assert not accepts(of, grammar, THOUGHT + CALL.replace('"x"', '"y"'))


def test_what_is_drawn_is_read() -> None:
    """Also where tokens spell it otherwise than the tokenizer would."""
    schemas = {"f": SCHEMA, "f2": {}}
    for seed in range(8):
        of, grammar = behind_thinking("openai_gptoss", tools=TOOLS, channels=True)
        turn, parser = Turn(), make_parser(reasoning="openai_gptoss", tools="openai", schemas=schemas, opened=True)
        turn.add(parser.feed(answer(of, grammar, seed, THOUGHT + "<|channel|>commentary to=")))
        turn.add(parser.finish())
        (call,) = turn.calls
        assert (turn.reasoning, turn.content) == ("Hm, {x: 1}?", "") and call.name in schemas


@pytest.mark.parametrize(
    ("reasoning", "start", "thought"),
    [
        ("gemma4", "<|channel>thought", "\nHm.<channel|>"),
        ("kimi_k3", "<|open|>think<|sep|>", "Hm.<|close|>think<|sep|>"),
    ],
)
def test_one_block_of_thinking(reasoning: str, start: str, thought: str) -> None:
    body = '{"x":1}'
    of, grammar = behind_thinking(reasoning, json_schema=SCHEMA)
    assert all(
        accepts(of, grammar, text) for text in (body, f"{start}{thought}{body}", f"\n{start}{thought}\n\n{body}")
    )
    for wrong in (
        f"{start}{thought}",
        f"Hm.{body}",
        f"{start}{thought}{start}{thought}{body}",
        f"{start[:-2]}{thought}{body}",
    ):
        assert not accepts(of, grammar, wrong), wrong
    of, inside = behind_thinking(reasoning, inside=True, json_schema=SCHEMA)
    assert accepts(of, inside, thought + body) and not accepts(of, inside, body)
