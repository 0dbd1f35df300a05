"""Makes expected.json: the ids of conversations, as Mistral's own library has them.

By hand, where mistral-common is, from the repository's root:
PYTHONPATH=. python tests/model/mistral/prompts/make.py
"""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from mistral_common.exceptions import MistralCommonException
from mistral_common.protocol.instruct.request import ChatCompletionRequest
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer

from tests.support.models.mistral.tekken import VERSIONS, write_tekken

HERE = Path(__file__).parent
FIRST, SECOND = "abcdefgh1", "abcdefgh2"  # ids
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "weather",
            "description": 'Grüße "x"',
            "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
        },
    },
    {"type": "function", "function": {"name": "now", "parameters": None}},
]


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


def says(content: Any, **calls: str) -> dict[str, Any]:
    """The assistant; `calls` are arguments by names, with FIRST and SECOND for ids."""
    made = [
        {"id": number, "type": "function", "function": {"name": name, "arguments": arguments}}
        for number, (name, arguments) in zip((FIRST, SECOND), calls.items(), strict=False)
    ]
    return {"role": "assistant", "content": content} | ({"tool_calls": made} if made else {})


def result(number: str, content: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": number, "content": content}


def system(content: str) -> dict[str, Any]:
    return {"role": "system", "content": content}


CHATS: list[tuple[list[dict[str, Any]], bool]] = [  # with tools?
    ([user("Hello, how are you?")], False),
    ([system("Be brief."), user(" Hi \n"), says("Yes?  "), user("é 日本")], False),
    ([user("a"), user("\nb"), says("c"), user([{"type": "text", "text": "d"}, {"type": "text", "text": "e"}])], False),
    ([system("S1"), system("S2"), user("x")], False),
    ([system("S"), user("q"), says("r"), user("t")], True),
    (
        [
            *(user("w?"), says("", weather='{"city":"Köln","n":[1,2.50]}', now="{}")),
            *(result(FIRST, '{"t": 22,"x":"ü"}'), result(SECOND, "12 o'clock"), says("It is 22."), user("thanks")),
        ],
        True,
    ),
    ([user("w?"), says("", weather="{}"), result(FIRST, "42")], True),
    ([user("w?"), says("Let me see. ", weather='{"city": "a"}'), result(FIRST, "[1, 2")], True),
    ([user("t"), says([{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "Done. "}]), user("o")], False),
]
THINKING = [(CHATS[4][0], True, "high"), (CHATS[2][0], False, "high")]  # how hard, too


def main() -> None:
    found: dict[str, list[dict[str, Any]]] = {}
    for version, special in VERSIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            known = MistralTokenizer.from_file(str(write_tekken(Path(folder), version, special)))
        for messages, with_tools, *effort in [*CHATS, *(THINKING if version == "v15" else ())]:
            asked = {"messages": messages, "tools": TOOLS if with_tools else None}
            if effort:
                asked["reasoning_effort"] = effort[0]
            try:
                ids = known.encode_chat_completion(ChatCompletionRequest.from_openai(**asked)).tokens
            except MistralCommonException as error:  # what a version refuses is left out
                print(f"{version}: {error}")
                continue
            found.setdefault(version, []).append({**asked, "ids": ids})
    (HERE / "expected.json").write_text(json.dumps(found, ensure_ascii=False, indent=None) + "\n")


if __name__ == "__main__":
    main()
