"""What comes out when: names as soon as they are known, arguments as they come, content at once."""

from __future__ import annotations

import pytest

from actorserve.http.output.events import (
    Arguments,
    CallStart,
    Content,
    OutputParser,
    Piece,
    ReasoningText,
    Turn,
    merged,
)
from actorserve.http.output.parsers.registry import make_parser
from tests.http.output.parsers.samples import SCHEMAS, WRITERS, Scene

LONG = "abcdefghij" * 3
WRITE = ("write_file", {"path": "p.txt", "content": LONG})


def parser_of(tools: str | None, reasoning: str | None = None, opened: bool = False) -> OutputParser:
    return make_parser(reasoning=reasoning, tools=tools, schemas=SCHEMAS, opened=opened)


def turn_after(parser: OutputParser, text: str) -> Turn:
    turn = Turn()
    turn.add(parser.feed(text))
    return turn


@pytest.mark.parametrize("tools", WRITERS)
def test_call_comes_before_its_arguments(tools: str) -> None:
    """When its first argument's value begins it is out, and nothing of what stands before a call is still held."""
    text = WRITERS[tools](Scene("", (WRITE,), "" if tools == "json_array" else "I write."))
    turn = turn_after(parser_of(tools), text[: text.index("p.txt")])
    assert [call.name for call in turn.calls] == ["write_file"]
    assert turn.content == ("" if tools == "json_array" else "I write.")


@pytest.mark.parametrize("tools", sorted(WRITERS.keys() - {"pythonic", "olmo3"}))
def test_arguments_come_with_each_character(tools: str) -> None:
    text = WRITERS[tools](Scene("", (WRITE,)))
    begin = text.index(LONG)
    for size in range(1, len(LONG) + 1):
        turn = turn_after(parser_of(tools), text[: begin + size])
        assert turn.calls[0].arguments.endswith('"' + LONG[:size])


def test_pythonic_arguments_come_one_by_one() -> None:
    turn = turn_after(parser_of("pythonic"), "[write_file(path='p', content='abc', x=[1")
    assert turn.calls[0].arguments == '{"path": "p", "content": "abc", "x": '


def test_arguments_that_are_a_list_come_as_they_come() -> None:
    turn = turn_after(parser_of("hermes"), '<tool_call>{"name": "now", "arguments": [1, "ab')
    assert turn.calls[0].arguments == '[1, "ab'


@pytest.mark.parametrize("tools", ["qwen3_coder", "glm45"])
def test_values_that_are_no_strings_come_when_they_are_whole(tools: str) -> None:
    """Until then 1 could become 1a, a string."""
    text = WRITERS[tools](Scene("", (("search", {"query": "q", "limit": 12345}),)))
    cut = text.index("12345") + 5
    assert turn_after(parser_of(tools), text[:cut]).calls[0].arguments.endswith('"limit": ')
    assert '"limit": 12345' in turn_after(parser_of(tools), text[: cut + 25]).calls[0].arguments


@pytest.mark.parametrize(
    ("tools", "text", "content"),
    [
        ("hermes", "a < b <t", "a < b "),
        ("hermes", "a\n\n", "a\n\n"),
        ("hermes", "<tool_call> x", "<tool_call> x"),
        ("hermes", '<tool_call>{"nam": ', ""),
        ("llama3_json", "So:\n", "So:\n"),
        ("llama3_json", "So: {", "So: "),
        ("llama3_json", "So: {x", "So: {x"),
        ("llama3_json", 'So: {"x": [1', 'So: {"x": [1'),
        ("llama3_json", 'So:\n{"x', "So:\n"),
        ("llama3_json", 'So:\n{"x"', 'So:\n{"x"'),
        ("pythonic", "see [1", "see [1"),
        ("pythonic", "[1,", "[1,"),
        ("mistral", "[TOOL", ""),
        ("mistral", "[TOOLS", "[TOOLS"),
        ("openai", "Hello", "Hello"),
        (None, "<tool_call>", "<tool_call>"),
    ],
)
def test_content_is_held_no_longer_than_it_must(tools: str | None, text: str, content: str) -> None:
    expected: list[Piece] = [Content(content)] if content else []
    assert merged(parser_of(tools).feed(text)) == expected


def test_reasoning_comes_as_it_comes() -> None:
    parser = parser_of("hermes", "qwen3", opened=True)
    assert parser.feed("One") == [ReasoningText("One")]
    assert parser.feed(" < two</th") == [ReasoningText(" < two")]
    assert parser.feed("e</think") == [ReasoningText("</the")]
    assert parser.feed(">\n\n") == []
    assert parser.feed("\nSo.<tool_call>") == [Content("So.")]
    assert parser.feed('{"name":"now"') == [CallStart(0, "now")]
    assert parser.feed(',"arguments":{"a"') == [Arguments(0, '{"a"')]
    assert parser.finish() == []


def test_channels_come_as_they_come() -> None:
    parser = parser_of("openai", "openai_gptoss")
    assert parser.feed("<|channel|>analysis<|message|>Hm") == [ReasoningText("Hm")]
    assert parser.feed(".<|end|><|start|>assistant<|channel|>comm") == [ReasoningText(".")]
    assert parser.feed("entary to=functions.now <|constrain|>json<|message|>") == [CallStart(0, "now")]
    assert parser.feed('{"a') == [Arguments(0, '{"a')]
    assert parser.feed('": 1}<|call|>') == [Arguments(0, '": 1}')]
    assert parser.feed("<|start|>assistant<|channel|>final<|message|>So") == [Content("So")]
    assert parser.feed("<|ret") == []
    assert parser.finish() == [Content("<|ret")]


def test_the_limit_leaves_no_markup() -> None:
    """A call whose name is not known yet is dropped; what has only begun to look like a marker is text."""
    parser = parser_of("hermes")
    assert parser.feed('So. <tool_call>\n{"name": "no') + parser.finish() == [Content("So. ")]
    parser = parser_of("hermes")
    assert merged(parser.feed("So. <tool_c") + parser.finish()) == [Content("So. <tool_c")]
    parser = parser_of("llama3_json")
    assert merged(parser.feed('{"name": "no') + parser.finish()) == [Content('{"name": "no')]
    parser = parser_of("qwen3_coder")
    pieces = parser.feed("<function=write_file>\n<parameter=path>\na\n</param") + parser.finish()
    assert merged(pieces) == [CallStart(0, "write_file"), Arguments(0, '{"path": "a')]
