"""What holds for every parser and every text: cuts change nothing, ends are met anywhere, time is linear."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from time import process_time

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from actorserve.http.output.events import Arguments, OutputParser, Piece, Turn, merged
from actorserve.http.output.parsers.registry import REASONING_PARSERS, TOOL_PARSERS, make_parser
from tests.http.output.parsers.odd_channels import ODD_CHANNELS
from tests.http.output.parsers.odd_ends import ODD_ENDS, ODD_PROSE
from tests.http.output.parsers.odd_json import ODD_JSON
from tests.http.output.parsers.odd_marks import ODD_MARKS
from tests.http.output.parsers.odd_tags import ODD_TAGS
from tests.http.output.parsers.samples import SCHEMAS, TAGGED, WRITERS, Asked, Sample, Scene, scenes
from tests.http.output.parsers.thoughts import THOUGHTS
from tests.support.selection import slow

ALL = [*scenes(), *ODD_JSON, *ODD_TAGS, *ODD_ENDS, *ODD_CHANNELS, *ODD_MARKS, *ODD_PROSE, *THOUGHTS]
NAMES: list[dict[str, str | None]] = [
    *({"tools": name, "reasoning": None} for name in TOOL_PARSERS),
    *({"tools": None, "reasoning": name} for name in REASONING_PARSERS),
    {"tools": "hermes", "reasoning": "qwen3"},
    {"tools": "gemma4", "reasoning": "gemma4"},
    {"tools": "json_array", "reasoning": "openai_gptoss"},
    {"tools": None, "reasoning": None, "named": "now"},
]

MARKUP = re.compile(r"</?tool_call>|<function=|<\|[a-z_]+\|>|<｜[^<>]*｜>|\[[A-Z_]{3,}\]|</?arg_\w+>|</?think>")


def by_format(samples: list[Sample]) -> dict[str, list[Sample]]:
    """A thousand samples in eighty tests: one of its own costs more than what most of them check."""
    found: dict[str, list[Sample]] = {}
    for sample in samples:
        found.setdefault(f"{sample.reasoning or ''}-{sample.tools or ''}", []).append(sample)
    return found


FORMATS = by_format(ALL)
each_format = pytest.mark.parametrize("samples", FORMATS.values(), ids=FORMATS)
every = pytest.mark.parametrize("step", [5, *slow(1)])  # of the places in a text


@contextmanager
def named(sample: Sample) -> Iterator[None]:
    """What fails says of which it is."""
    try:
        yield
    except BaseException as error:
        error.add_note(f"sample: {sample}")
        raise


def so_far(parser: OutputParser, text: str) -> Iterator[list[Piece]]:
    """What has come out before the text and after each of its characters, merged."""
    pieces: list[Piece] = []
    yield []
    for char in text:
        pieces = merged(pieces + parser.feed(char))
        yield pieces


def turn_of(pieces: list[Piece]) -> Turn:
    turn = Turn()
    turn.add(pieces)
    return turn


def check_cuts(text: str, make: Callable[[], OutputParser], cuts: Iterable[int]) -> None:
    """After each prefix the same has come out however it was cut, and so at the end."""
    slow = make()
    steps = list(so_far(slow, text))
    whole = merged(steps[-1] + slow.finish())
    for cut in cuts:
        parser = make()
        before = parser.feed(text[:cut])
        assert merged(before) == steps[cut], f"after {text[:cut]!r}"
        assert merged(before + parser.feed("") + parser.feed(text[cut:]) + parser.finish()) == whole


@each_format
def test_means_what_it_should(samples: list[Sample]) -> None:
    for sample in samples:
        with named(sample):
            sample.check(sample.turn())


@each_format
@every
def test_cuts_change_nothing(samples: list[Sample], step: int) -> None:
    for number, sample in enumerate(samples):
        with named(sample):
            check_cuts(sample.text, sample.parser, range(number % step, len(sample.text) + 1, step))


@each_format
@every
def test_end_at_every_place(samples: list[Sample], step: int) -> None:
    """The length limit cuts anywhere: what came out is the beginning of the whole, what was held is text or nothing."""
    for number, sample in enumerate(samples):
        with named(sample):
            check_ends(sample, range(number % step, len(sample.text) + 1, step))


def check_ends(sample: Sample, cuts: Iterable[int]) -> None:
    whole = sample.turn()
    for cut in cuts:
        parser = sample.parser()
        given, last = turn_of(parser.feed(sample.text[:cut])), parser.finish()
        held = turn_of([piece for piece in last if not isinstance(piece, Arguments)])
        given.add([piece for piece in last if isinstance(piece, Arguments)])
        assert whole.content.startswith(given.content) and whole.reasoning.startswith(given.reasoning)
        assert not held.calls and sample.text[:cut].endswith(held.content or held.reasoning)
        for at, (call, full) in enumerate(zip(given.calls, whole.calls, strict=False)):
            # A text that ends there has closed its call, whose last argument may have no end of its own.
            closed = sample.text[:cut].rstrip().endswith("</function>")
            began = call.arguments.removesuffix('"}') if closed else call.arguments
            assert (call.name, call.id) == (full.name, full.id) and full.arguments.startswith(began)
            assert call.arguments == full.arguments or at == len(given.calls) - 1
        for marker in MARKUP.findall(held.content):
            assert marker in whole.content


PARTS = (
    """
<tool_call> </tool_call> <tool <function= <function=now> </function> <parameter=city> </parameter> <arg_key> </arg_key>
<arg_value> </arg_value> [TOOL_CALLS] [ARGS] [CALL_ID] now get_weather functions.now:0 {"name":"now", "arguments": {}
{"city":"Os\\"lo"} " \\ { } [ ] [now()] [now( city= 'x' , ; ) ( = : ``` ```json null true 1 x
<｜tool▁calls▁begin｜> <｜tool▁call▁begin｜> <｜tool▁sep｜> <｜tool▁call▁end｜> <｜tool▁calls▁end｜>
<|tool_calls_section_begin|> <|tool_call_begin|> <|tool_call_argument_begin|> <|tool_call_end|>
<|tool_calls_section_end|> <|tool_call|> <|python_tag|> <|python_start|> <|python_end|> <|start|> <|channel|>
<|message|> <|end|> <|call|> <|constrain|> <|channel|>analysis<|message|> to=functions.now
<|tool_call> <tool_call|> call:now{ <|"|> a: , <｜DSML｜invoke </｜DSML｜invoke> name="now"> string="true">
<function_calls> </function_calls> ```tool_code >>> all >>>now <|START_ACTION|> <|END_ACTION|> functools[
<|action_start|> <|plugin|> <steptml:invoke <｜tool_sep｜> function <response> </response>
<think> </think> [THINK] [/THINK] Here
""".split()
    + ["Here is my thought process:", "Here is my response:", " ", "\n"]
)
TEXTS = st.lists(st.sampled_from(PARTS), max_size=14).map("".join)


@pytest.mark.parametrize("examples", [150, *slow(1000)])
def test_any_text_in_any_cuts(examples: int) -> None:
    """Bits of all markups in any order."""
    settings(max_examples=examples)(given(st.sampled_from(NAMES), TEXTS, st.booleans())(check_text))()


def check_text(names: dict[str, str | None], text: str, opened: bool) -> None:
    def make() -> OutputParser:
        return make_parser(
            reasoning=names["reasoning"],
            tools=names["tools"],
            schemas=SCHEMAS,
            opened=opened,
            named=names.get("named"),
        )

    check_cuts(text, make, range(len(text) + 1))
    parser = make()
    turn = turn_of(parser.feed(text) + parser.finish())
    if not turn.calls and names["reasoning"] is None and names["tools"] not in ("openai", "functionary"):
        assert text.startswith(turn.content)


WORDS = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="<[{|"), max_size=20)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)
LETTERS = ("function call", "Action:", "```json", "```tool_code")  # markers that other texts begin like, too
KEYS = st.sampled_from(["a", "name", "arguments", "parameters", "k_1"])
CALLS = st.lists(
    st.tuples(st.sampled_from(["now", "search", "f-1"]), st.dictionaries(KEYS, VALUES, max_size=3)),
    min_size=1,
    max_size=3,
)


@settings(max_examples=100)
@given(st.sampled_from(sorted(WRITERS.keys() - {*TAGGED, "gemma4"})), CALLS, WORDS, WORDS, st.data())
def test_any_calls(tools: str, calls: list[Asked], before: str, after: str, data: st.DataObject) -> None:
    """Whatever the arguments, they come out as they went in; so does content that is more than white space, and behind
    calls no beginning of a marker of letters: it cannot be told from one that the length limit has cut.
    """
    assume(not after.strip() or not any(marker.startswith(after.strip()) for marker in LETTERS))
    before, after = (text if text.strip() and tools != "json_array" else "" for text in (before, after))
    scene = Scene("any", tuple(calls), before, after)
    sample = Sample("any", WRITERS[tools](scene), tools, content=before + after, calls=scene.calls)
    sample.check(sample.turn())
    check_cuts(sample.text, sample.parser, [data.draw(st.integers(0, len(sample.text)))])


@settings(max_examples=100)
@given(
    st.sampled_from([*TAGGED, "gemma4", "deepseek_v32", "deepseek_v41", "gigachat35", "kimi_k3"]),
    WORDS | st.text(max_size=20).filter(lambda text: "</" not in text),
    st.data(),
)
def test_any_string_in_tags(tools: str, text: str, data: st.DataObject) -> None:
    """A string stays what it is, white space included, though it looks like a number or JSON. One that holds the very
    tag that ends it cannot be told from its end, in none of these formats.
    """
    scene = Scene("any", (("write_file", {"path": text, "content": text + "\n{1}"}),))
    sample = Sample("any", WRITERS[tools](scene), tools, calls=scene.calls)
    sample.check(sample.turn())
    check_cuts(sample.text, sample.parser, [data.draw(st.integers(0, len(sample.text)))])


def cpu_seconds(make: Callable[[], OutputParser], text: str) -> float:
    """Of one run, character by character."""
    parser = make()
    begin = process_time()
    for char in text:
        parser.feed(char)
    parser.finish()
    return process_time() - begin


@pytest.mark.parametrize(
    ("tools", "reasoning", "begin", "unit"),
    [
        ("hermes", "qwen3", "", "<tool_call>\n {"),
        ("hermes", "deepseek_r1", "", " "),
        ("hermes", None, '<tool_call>{"arguments": ["', '{\\"</tool_call'),
        ("hermes", None, '<tool_call>{"name": "f", "arguments": ', "[{"),
        ("mistral", None, "[TOOL_CALLS]", "name"),
        ("qwen3_coder", None, "<function=write_file><parameter=content>", "\n</parameter"),
        ("qwen3_coder", None, "<function=write_file><parameter=content>x</parameter>", "\n"),
        ("openai", None, "<|channel|>commentary to=functions.now<|message|>{}<|call|>commentary", " "),
        ("glm45", None, "<tool_call>search<arg_key>tags</arg_key><arg_value>", "</arg_"),
        ("llama3_json", None, "", '\n{"name": "now"} ;'),
        ("llama3_json", None, "", "{ {"),
        ("llama3_json", None, "", '{"a": '),
        ("pythonic", None, "[now(a=", "['\\'"),
        ("openai", None, "", "<|start|>a\n"),
        ("gemma4", None, '<|tool_call>call:write_file{content:<|"|>', "<|\n"),
        ("gemma4", None, "<|tool_call>call:search{tags:[", "[x],"),
        ("functionary", None, "", "all"),
        ("xlam", None, "", "```json\n["),
    ],
)
def test_time_is_linear(tools: str, reasoning: str | None, begin: str, unit: str) -> None:
    """Eight times the text takes about eight times as long; what looks at all of it again would take 64 times, in
    each run: those that were disturbed are done again.
    """

    def make() -> OutputParser:
        return make_parser(reasoning=reasoning, tools=tools, schemas=SCHEMAS)

    short, long = (begin + (unit * size)[:size] for size in (3_000, 24_000))
    most = 24 * min(cpu_seconds(make, short) for _ in range(2))
    assert any(cpu_seconds(make, long) < most for _ in range(8))
