"""Texts with reasoning before the content, in each format."""

from __future__ import annotations

from actorserve.http.output.parsers.registry import ANSWER_TAGS, CALL_BEGINS, THINK_MARKERS, THINKS_IN_CONTENT
from tests.http.output.parsers.samples import Sample

_ENDED_BY_CALLS = {reasoning for reasoning, _ in CALL_BEGINS}
PLAIN = {  # one of each kind
    (THINK_MARKERS[name], ANSWER_TAGS.get(name), name in _ENDED_BY_CALLS): name
    for name in THINK_MARKERS
    if name not in ("openai_gptoss", THINKS_IN_CONTENT)
}
_CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def _of(name: str) -> list[Sample]:
    start, end = THINK_MARKERS[name]
    thought = f"One < two,\n\n{start[:-1]} {end[:3]}{{}}"
    unopened = "".join((thought, end, "So."))
    stray = "" if name in ("gemma4", "apertus") else end  # it is a special token, which no answer says

    def sample(label: str, text: str, thought: str = thought, content: str = "So.", opened: bool = False) -> Sample:
        return Sample(label, text, reasoning=name, opened=opened, thought=thought, content=content)

    return [
        sample("marked", f"{start}{thought}{end}So."),
        sample("newlines", f"\n{start}\n{thought}\n{end}\r\n\n\nSo.\n", f"\n{thought}\n", "So.\n"),
        sample("indented", f"{start}{thought}{end}\n  So.", content="  So."),
        sample("opened", unopened, opened=True),
        sample("opened twice", f"\n{start}{thought}{end}\nSo.", opened=True),
        sample("opened, white space", f"\n\n{thought}{end}So.", f"\n\n{thought}", opened=True),
        sample("never closed", f"{start}{thought}", content=""),
        sample("never closed, opened", thought, content="", opened=True),
        sample("no thought", f"{start}{end}So.", thought=""),
        sample("no content", f"{start}{thought}{end}\n\n", content=""),
        sample("nothing", "", thought="", content=""),
        sample("not opened", unopened, "", f"{thought}{stray}So."),
        sample("white space", " \n", "", " \n"),
        sample("end again", f"{start}x{end}So.{end} ", "x", f"So.{stray} "),
        sample("end twice", f"{start}x{end}{end}So.", "x"),
        Sample("call", f"{start}x{end}\n\n{_CALL}", "hermes", name, thought="x", calls=(("now", {}),)),
        Sample("call in thought", f"{_CALL}{end}So.", "hermes", name, opened=True, thought=_CALL, content="So."),
        Sample("forced", f"{start}{end}\n{{}}", reasoning=name, named="now", calls=(("now", {}),)),
    ]


_KEPT = [
    Sample(label, text, reasoning=THINKS_IN_CONTENT, opened=opened, content=content)
    for label, text, opened, content in (
        ("marked", "<think>\na\n</think>\n\nb</think>", False, "<think>\na\n</think>\n\nb</think>"),
        ("opened", "\na < </\n</think>\n\nb<think>c", True, "<think>\na < </\n</think>\n\nb<think>c"),
        ("opened twice", "\n<think>a</think>b", True, "<think>a</think>b"),
        ("opened, ends in a marker", "a</thi", True, "<think>a</thi"),
        ("opened, begins as the marker", " <thi", True, "<think> <thi"),
        ("no thought", "</think>\nb", True, "<think></think>\nb"),
        ("not opened", " a</think>b", False, " a</think>b"),
        ("nothing", "", True, ""),
    )
]
THOUGHTS = [
    *(sample for name in PLAIN.values() for sample in _of(name)),
    *_KEPT,
    Sample(
        "calls in kept thought and behind it",
        f"{_CALL}</think>\n{_CALL}",
        "hermes",
        THINKS_IN_CONTENT,
        opened=True,
        content=f"<think>{_CALL}</think>",
        calls=(("now", {}),),
    ),
    Sample(
        "again",
        "[THINK]a[/THINK]b\n[THINK]c[/THINK]\n[THINK]d[/THINK]e",
        reasoning="mistral",
        thought="acd",
        content="b\ne",
    ),
    Sample(
        "spoken of",
        "[THINK]a[/THINK]`[THINK]` is a mark, \n [THINK]too",
        reasoning="mistral",
        thought="a",
        content="`[THINK]` is a mark, \n [THINK]too",
    ),
    Sample(
        "in a call",
        'So.[TOOL_CALLS]get_weather[ARGS]{"city": "[THINK]\n[THINK]x[/THINK]"}',
        "mistral",
        "mistral",
        content="So.",
        calls=(("get_weather", {"city": "[THINK]\n[THINK]x[/THINK]"}),),
    ),
    *(
        Sample(label, text, reasoning="qwen3", opened=opened, thought=thought, content="b\n</think>c")
        for label, text, opened, thought in (
            ("end twice, in lines", "<think>a\n</think>\n\n</think>\n</think>\n\nb\n</think>c", False, "a\n"),
            ("end that the prompt has, too", "</think>\n\nb\n</think>c", False, ""),
        )
    ),
    Sample("again", "<think>a</think>b<think>c</think>", reasoning="qwen3", thought="a", content="b<think>c</think>"),
    Sample(
        "short form",
        "Here's my thought process:\na\nHere's my response:\nb",
        reasoning="granite",
        thought="\na\n",
        content="b",
    ),
    *(
        Sample(label, text, reasoning="granite33", opened=opened, thought=thought, content=content)
        for label, text, opened, thought, content in (
            ("wrapped", "<think>a</think>\n<response>\nb <i> c</response>\n", False, "a", "b <i> c\n"),
            ("wrapped at once", "<think>a</think><response>b</response>", False, "a", "b"),
            ("opened", "a</think> <response>b</response></response>", True, "a", "b</response>"),
            ("no thought", " <response>b</response>", False, "", "b"),
            ("not closed", "<think>a</think><response>b</resp", False, "a", "b</resp"),
            ("closed only", "<think>a</think>b</response>", False, "a", "b</response>"),
            ("half a tag", "<think>a</think><respon", False, "a", "<respon"),
            ("tag inside", "<think>a</think>See <response>b</response>", False, "a", "See <response>b</response>"),
            ("in the thinking", "<think><response>a</think>b", False, "<response>a", "b"),
        )
    ),
    Sample(
        "wrapped call",
        '<think>a</think><response>b</response><|tool_call|>[{"name": "now", "arguments": {}}]',
        "granite",
        "granite33",
        thought="a",
        content="b",
        calls=(("now", {}),),
    ),
    Sample("forgotten end", f"<think>x\n\n{_CALL}", "hermes", "qwen3", thought="x\n\n", calls=(("now", {}),)),
    Sample(
        "forgotten end, two calls",
        f"x\n{_CALL}\n{_CALL}</think>\n\nSo.",
        "hermes",
        "qwen3",
        opened=True,
        thought="x\n",
        content="So.",
        calls=(("now", {}),) * 2,
    ),
    Sample(
        "forgotten end",
        "<think>x\n<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "qwen3_coder",
        "qwen3",
        thought="x\n",
        calls=(("now", {}),),
    ),
    Sample(
        "forgotten end",
        "<think>x<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}"
        "<|tool_call_end|><|tool_calls_section_end|>",
        "kimi_k2",
        "kimi_k2",
        thought="x",
        calls=(("now", {}),),
    ),
    Sample(
        "forgotten end",
        "<|channel>thought\nx<|tool_call>call:now{}<tool_call|>",
        "gemma4",
        "gemma4",
        thought="\nx",
        calls=(("now", {}),),
    ),
    Sample(
        "forgotten end, and no section",
        "<think>x<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|>",
        "kimi_k2",
        "kimi_k2",
        thought="x",
        calls=(("now", {}),),
    ),
    Sample(
        "forgotten end",
        '<think>x\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="now">\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>',
        "deepseek_v4",
        "deepseek_v4",
        thought="x\n\n",
        calls=(("now", {}),),
    ),
    Sample(
        "forgotten end",
        "x\n<|tool_call:start|>now\n<|tool_call:end|>",
        "solar_open2",
        "solar_open2",
        opened=True,
        thought="x\n",
        calls=(("now", {}),),
    ),
    Sample(
        "forgotten end",
        '<think>x\n\n<｜DSML｜ calls>\n<｜DSML｜ invoke name="now">\n</｜DSML｜ invoke>\n</｜DSML｜ calls>',
        "deepseek_v41",
        "deepseek_v4",
        thought="x\n\n",
        calls=(("now", {}),),
    ),
    Sample(
        "forgotten end before the answer",
        "x<|open|>response<|sep|>b<|close|>response<|sep|><|close|>message<|sep|>",
        reasoning="kimi_k3",
        opened=True,
        thought="x",
        content="b",
    ),
    Sample(
        "forgotten end before calls",
        '<|START_THINKING|>a<|START_ACTION|>[{"tool_call_id": "2", "tool_name": "now", "parameters": {}}]'
        "<|END_ACTION|>",
        "cohere_command3",
        "cohere_command3",
        thought="a",
        calls=(("now", {}),),
        ids=("2",),
    ),
    Sample("of the preview", "<think>a</think>b", reasoning="hy_v3", thought="a", content="b"),
    Sample(
        "more thoughts, and an end too many",
        "<|channel>thought\na<channel|>b<|channel>thought\nc<channel|><channel|>d",
        reasoning="gemma4",
        thought="\na\nc",
        content="bd",
    ),
    Sample(
        "an answer in lines of its own",
        "<think>\na\n</think>\n<answer>\nb\n</answer>",
        reasoning="hunyuan_a13b",
        thought="\na\n",
        content="b",
    ),
    Sample(
        "a plan, and calls",
        "<|START_THINKING|>a<|END_THINKING|><|START_ACTION|>["
        '{"tool_call_id": "2", "tool_name": "now", "parameters": {}}]<|END_ACTION|>',
        "cohere_command3",
        "cohere_command3",
        thought="a",
        calls=(("now", {}),),
        ids=("2",),
    ),
    Sample(
        "all channels",
        "a<|close|>think<|sep|><|open|>response<|sep|>b\n<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="now" index="1"<|sep|><|close|>call<|sep|><|close|>tools<|sep|><|close|>message<|sep|>',
        "kimi_k3",
        "kimi_k3",
        opened=True,
        thought="a",
        content="b",
        calls=(("now", {}),),
    ),
    Sample(
        "begun by the prompt",
        "So.<|close|>response<|sep|><|close|>message<|sep|>",
        reasoning="kimi_k3",
        content="So.",
    ),
    Sample(
        "an answer at once",
        "<|START_RESPONSE|>4 < 5<|END_RESPONSE|>",
        "cohere_command3",
        "cohere_command3",
        content="4 < 5",
    ),
    Sample(
        "call in words",
        "<think>a <tool_call>\n{, or\n<tool_call> so</think>b",
        "hermes",
        "qwen3",
        thought="a <tool_call>\n{, or\n<tool_call> so",
        content="b",
    ),
    Sample("no parser", "<think>a</think><tool_call>", content="<think>a</think><tool_call>"),
]
