"""The scripts of the model that the tests of this folder share, and what they do with its server."""

from __future__ import annotations

import time
from typing import Any

from openai import OpenAI

from tests.server.api.test_tool_calls import TOOLS
from tests.support.server import Server

FUNCTIONS: list[Any] = [{"type": "function", "strict": False, **tool["function"]} for tool in TOOLS]

PATCH = '*** Begin Patch\n+a "b"\t\\c\n*** End Patch'

REMEMBERS = (  # what is asked for by <recall> is known where the thinking, or a summary, stands before it
    "{% set ns = namespace(known=false) %}{% for message in messages %}{% set said = message.content or '' %}"
    "{% if 'Pondered  so.' in (message.reasoning_content or '') or said.endswith(':\n\nAll of it.') %}"
    "{% set ns.known = true %}{% endif %}{% endfor %}{% set last = messages[-1].content %}"
    "{% if last == '<recall>' and ns.known or last.startswith('What was ') %}<known>"
    "{% elif last.startswith('Sum up') %}{{ '<long>' if messages[0].content == '<long>' else '<sum>' }}"
    "{% else %}{{ last }}{% endif %}"
)

BOTTLES = "".join(f"{number} bottles, " for number in range(300))


def kill_frontends(server: Server) -> None:
    for name in ("frontend-0", "frontend-1"):
        server.replace(name)


def ask(client: OpenAI, script: str, **fields: Any) -> Any:
    """The whole answer, which must be the stream's, too."""
    asked: dict[str, Any] = {"model": "gpt", "input": f"<{script}>", "tools": FUNCTIONS, **fields}
    whole = client.responses.create(**asked)
    with client.responses.stream(**asked) as stream:
        numbers = [event.sequence_number for event in stream]
        streamed = stream.get_final_response()
    assert numbers == list(range(len(numbers)))
    assert [_plain(item) for item in streamed.output] == [_plain(item) for item in whole.output]
    assert (streamed.status, streamed.usage) == (whole.status, whole.usage)
    return whole


def _plain(item: Any) -> Any:
    body = item.to_dict()
    return {name: value for name, value in body.items() if name not in ("id", "call_id", "parsed_arguments")} | {
        "content": [part.get("text") for part in body.get("content") or ()]
    }


def wait_for(client: OpenAI, name: str) -> Any:
    deadline = time.monotonic() + 60
    while (found := client.responses.retrieve(name)).status == "in_progress":
        assert time.monotonic() < deadline
        time.sleep(0.05)  # polling is how these are waited for
    return found
