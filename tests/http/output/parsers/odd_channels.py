"""Texts in Harmony's channels that keep to no format, or to a seldom form of it."""

from __future__ import annotations

from tests.http.output.parsers.forms import NOW, one, raw, text
from tests.http.output.parsers.samples import Sample

ODD_CHANNELS = [
    Sample("named", "<|channel|>final<|message|>{}", "openai", "openai_gptoss", named="now", calls=(NOW,)),
    Sample("opened", "Hm.<|end|><|channel|>final<|message|>", None, "openai_gptoss", opened=True, thought="Hm."),
    Sample(
        "all",
        "<|channel|>analysis<|message|>Hm. {x}<|end|><|start|>assistant<|channel|>commentary<|message|>I look."
        "<|end|><|start|>assistant<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>",
        "openai",
        thought="Hm. {x}",
        content="I look.",
        calls=(NOW,),
    ),
    Sample(
        "answer",
        "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>4 < 5.<|return|>",
        "openai",
        "openai_gptoss",
        thought="Hm.",
        content="4 < 5.",
    ),
    one(
        "recipient first, opened",
        "openai",
        ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}<|call|>',
        reasoning="openai_gptoss",
        opened=True,
    ),
    Sample("half a recipient, opened", " to=fun", "openai", "openai_gptoss", opened=True, thought=" to=fun"),
    Sample("no recipient, opened", "\nto=f<|end|>", "openai", "openai_gptoss", opened=True, thought="\nto=f"),
    Sample(
        "a channel, and another",
        "<|channel|>commentary to=assistant<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final"
        "<|message|>So.",
        reasoning="openai_gptoss",
        thought="Hm.",
        content="So.",
    ),
    Sample(
        "a word between calls",
        "<|channel|>commentary to=functions.now<|message|>{}<|call|>commentary<|channel|>commentary to=functions.now"
        "<|message|>{}<|call|>commentary<|start|>assistant<|channel|>final<|message|>So.<|return|>",
        "openai",
        content="So.",
        calls=(NOW, NOW),
    ),
    text("no end", "openai", "a <|endings|> b"),
    Sample("an end too many", "<|end|><|start|><|channel|>final<|message|>a<|end|>", "openai", content="a"),
    one("recipient first", "openai", ' to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Oslo"}'),
    one(
        "recipient behind the role",
        "openai",
        "<|start|>assistant to=functions.now<|channel|>commentary<|message|> {} <|call|>",
        NOW,
        raw=("{}",),
    ),
    one("nothing said", "openai", "<|channel|>commentary to=functions.now<|message|><|call|>", NOW),
    one(
        "markers in strings",
        "openai",
        '<|channel|>commentary to=functions.get_weather<|message|>{"city": "<|end|><|call|>"}<|call|>',
        ("get_weather", {"city": "<|end|><|call|>"}),
    ),
    one("known without namespace", "openai", "<|channel|>commentary to=now<|message|>{}<|call|>", NOW),
    raw(
        "broken",
        "openai",
        "<|channel|>commentary to=functions.get_weather<|message|>{x}<|call|>\n<|start|>assistant"
        "<|channel|>final<|message|>So.",
        "{x}",
        content="So.",
    ),
    raw("code", "openai", "<|channel|>commentary to=functions.get_weather code<|message|>print(1)", "print(1)"),
    Sample(
        "tools of the server",
        "<|channel|>analysis to=python code<|message|>1+1<|call|><|start|>assistant"
        "<|channel|>commentary to=browser.open<|message|>{}<|call|>",
        "openai",
        thought="1+1",
        content="{}",
    ),
    text("no channel", "openai", "Hello, to=you <|x|>"),
    text("nothing but a word", "openai", " to"),
    text("no header", "openai", "<|channel|>final\n<|message"),
    text("headers again and again", "openai", "<|start|>\n" * 9 + "x"),
    Sample(
        "no end",
        "<|channel|>analysis<|message|>Hm.<|channel|>final<|message|>So.<|start|>assistant<|message|>!",
        "openai",
        thought="Hm.",
        content="So.!",
    ),
    Sample(
        "opened",
        "Hm.<|end|><|start|>assistant<|channel|>final<|message|>So.",
        "openai",
        opened=True,
        thought="Hm.",
        content="So.",
    ),
    Sample(
        "no tools", "<|channel|>commentary to=functions.now<|message|>{}<|call|>", None, "openai_gptoss", content="{}"
    ),
    Sample(
        "forced",
        '<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>[{"name": "now"}]',
        "json_array",
        "openai_gptoss",
        thought="Hm.",
        calls=(NOW,),
    ),
]
