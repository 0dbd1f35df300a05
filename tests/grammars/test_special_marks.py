"""Grammars with marks that are special tokens, behind thinking and of calls: gpt-oss', Gemma 4's, Kimi K3's."""

from __future__ import annotations

from functools import cache
from typing import Any

import msgspec
import pytest
from tokenizers import Tokenizer

from actorserve.actors.grammar.compiler import Grammars
from actorserve.http.generation.fields.decoding import decode
from actorserve.http.generation.structured_output import constraint_of
from actorserve.http.openai.schemas import ChatRequest
from actorserve.http.output.events import Turn
from actorserve.http.output.parsers.registry import ANSWER_TAGS, THINK_MARKERS, make_parser
from tests.grammars.drawing import Model, accepts, allowed, answer, model
from tests.grammars.schemas import INTEGER, made
from tests.http.bodies import HI, body_of
from tests.support.models.tokenizers_made import byte_level, token_id

MARKS = {
    "openai_gptoss": "<|start|> <|end|> <|message|> <|channel|> <|constrain|>",
    "gemma4": '<|channel> <channel|> <|tool_call> <tool_call|> <|"|>',
    "kimi_k3": "<|open|> <|close|> <|sep|>",
    "minimax_m3": "<mm:think> </mm:think> ]<]minimax[>[",
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


def takes(of: Model, grammar: str, text: str) -> bool:
    """With marks that begin with no <, too, which llguidance's own tokenizer does not find."""
    ids = of.tokenizer.encode(text, add_special_tokens=False).ids
    matchers = of.matchers()
    matchers.place(0, grammar)
    for token in ids:
        if token not in allowed(matchers, 0):
            return False
        matchers.advance(0, token)
    return not set(of.ends).isdisjoint(allowed(matchers, 0).tolist())


GEMMA = '<|tool_call>call:f{x:{y:1},z:<|"|>}<b><|"|>}<tool_call|>'
MINIMAX = "]<]minimax[>["
KIMI_CALL = (
    '<|open|>call tool="f" index="1"<|sep|><|open|>argument key="x" type="number"<|sep|>1<|close|>argument<|sep|>'
    "<|close|>call<|sep|>"
)
KIMI = f"<|open|>tools<|sep|>{KIMI_CALL}{KIMI_CALL}<|close|>tools<|sep|>"
EMPTY = "<|open|>response<|sep|><|close|>response<|sep|>"
CALLS = {
    "gemma4": [GEMMA, GEMMA + GEMMA.replace("call:f", "call:f2")],
    "minimax_m3": [
        f'{MINIMAX}<tool_call>\n{MINIMAX}<invoke name="f">{MINIMAX}<x>1{MINIMAX}</x>'
        f"{MINIMAX}</invoke>\n{MINIMAX}</tool_call>"
    ],
    "kimi_k3": [KIMI, EMPTY + KIMI, "<|close|>response<|sep|>" + KIMI],
}


@pytest.mark.parametrize("parser", CALLS)
def test_calls_whose_arguments_no_grammar_knows(parser: str) -> None:
    """The names are held to, and that they come to their end; an answer may stand in their place."""
    start, end = THINK_MARKERS[parser]
    tools = [{"type": "function", "function": {"name": name}} for name in ("f", "f2")]
    body = body_of(messages=HI, response_format={"type": "json_object"}, tools=tools)
    found, _ = constraint_of(decode(ChatRequest, body), parser, parser)
    spelled = model("demo")
    grammar = spelled.grammar(**msgspec.json.decode(found or b""))
    assert all(accepts(spelled, grammar, text) for text in [*CALLS[parser], '{"x": 1}'])
    of = with_marks(parser)
    grammar = of.grammar(after=end, before=start, **msgspec.json.decode(found or b""))
    for text in [*CALLS[parser], '{"x": 1}']:
        assert takes(of, grammar, text) and takes(of, grammar, f"{start}Hm.{end}{text}")
    for text in CALLS[parser]:
        turn, reader = Turn(), make_parser(reasoning=parser, tools=parser, schemas={})
        turn.add([*reader.feed(text), *reader.finish()])
        assert turn.calls and turn.calls[0].name == "f" and not turn.content
        for wrong in (text.replace("f", "g"), text[:-20], f"So: {text}", f'{{"x": 1}}{text}'):
            assert not takes(of, grammar, wrong), wrong


@pytest.mark.parametrize("reasoning", ["kimi_k3", "granite33"])
def test_marks_around_an_answer(reasoning: str) -> None:
    """The model was made to write them, and may; a client gets what is between."""
    (begin, close, *_), (start, end) = ANSWER_TAGS[reasoning], THINK_MARKERS[reasoning]
    of = with_marks("kimi_k3")
    grammar = of.grammar(json_schema=SCHEMA, after=end, before=start, around=[begin, close])
    body = '{"x":1}'
    for answer_ in (body, f"{begin}{body}{close}", f"{begin}\n{body}\n{close}", f"{begin}{body}"):
        for text in (answer_, f"{start}Hm.{end}{answer_}"):
            assert accepts(of, grammar, text)
            turn, reader = Turn(), make_parser(reasoning=reasoning, tools=None, schemas={})
            turn.add([*reader.feed(text), *reader.finish()])
            assert turn.content.strip() == body
    for wrong in (f"{body}{close}", f"{begin}{close}", f"{begin}{begin}{body}", f"{begin}So: {body}", f"{close}{body}"):
        assert not accepts(of, grammar, wrong), wrong
