"""Chats of models that have code in place of a chat template, over HTTP with the openai client."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from openai import OpenAI

from tests.support.models.census import write_tiny
from tests.support.scripted import scripted
from tests.support.server import Server

SOON: dict[str, Any] = {"type": "object", "properties": {"soon": {"type": "boolean"}}, "required": ["soon"]}
TOOLS: list[Any] = [
    {"type": "function", "function": {"name": "rain", "parameters": SOON | {"additionalProperties": False}}}
]
CALL = (
    '\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name="rain">\n<｜DSML｜parameter name="soon" string="false">true'
    "</｜DSML｜parameter>\n</｜DSML｜invoke>\n</｜DSML｜tool_calls>"
)
OPTIONS = ("--threads", "1", "--device", "cpu", "--max-num-seqs", "2")


def ask(server: Server, **fields: Any) -> Any:
    """Without thinking."""
    with OpenAI(base_url=f"{server.base_url}/v1", api_key="-", max_retries=0) as client:
        return client.chat.completions.create(
            model=client.models.list().data[0].id,
            messages=[{"role": "user", "content": "Will it rain?"}],
            tools=TOOLS,
            temperature=0,
            reasoning_effort="none",
            extra_body={"return_prompt_text": True},
            **fields,
        )


def calls(answer: Any) -> list[tuple[str, Any]]:
    return [(one.function.name, json.loads(one.function.arguments)) for one in answer.choices[0].message.tool_calls]


def test_deepseek_v4_is_told_of_tools_and_calls_them(tmp_path: Path) -> None:
    write_tiny("deepseek_v4", tmp_path, max_position_embeddings=2048)
    about = tmp_path / "tokenizer_config.json"
    about.write_text(json.dumps(json.loads(about.read_text()) | {"chat_template": None}))
    with Server(str(tmp_path), *OPTIONS) as server:
        answer = ask(server, tool_choice="required", parallel_tool_calls=False, max_tokens=200)
    ((name, arguments),) = calls(answer)
    assert name == "rain" and isinstance(arguments["soon"], bool)
    assert answer.prompt_text.startswith("<｜begin▁of▁sentence｜>\n\n## Tools\n\nYou have access to a set of tools")
    assert answer.prompt_text.endswith("<｜User｜>Will it rain?<｜Assistant｜></think>")


def test_the_mode_chooses_template_and_parsers(tmp_path: Path) -> None:
    scripted(tmp_path, {"/think": CALL})  # the prompt's end, which says that nothing is thought
    with Server(str(tmp_path), *OPTIONS, "--tokenizer-mode", "deepseek_v4") as server:
        answer = ask(server)
    assert calls(answer) == [("rain", {"soon": True})] and answer.choices[0].finish_reason == "tool_calls"
    assert answer.choices[0].message.content is None
