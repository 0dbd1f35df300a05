"""What bodies with many parts cost before their number is looked at: each part as much, however many there are. Counted
is what grew with those before it: messages that are looked at, bytes that are copied, names that are compared.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from actorserve.http.openai.responses.messages import MessageBuilder
from actorserve.http.openai.responses.requests import to_chat
from actorserve.http.openai.responses.tools import namespaces
from tests.http.openai.responses.test_requests import TIME, request_of

MANY = 300
TOOLS = [{**TIME, "name": f"t{number}"} for number in range(MANY)]
THOUGHT = "a" * 1000


class Message(dict[str, Any]):
    """Counts how often one is looked at."""

    looks = 0

    def __getitem__(self, name: str) -> Any:
        Message.looks += 1
        return super().__getitem__(name)


class Name(str):
    """Counts how often one is compared with another."""

    __slots__ = ()
    comparisons = 0
    __hash__ = str.__hash__

    def __eq__(self, other: object) -> bool:
        Name.comparisons += 1
        return str.__eq__(self, other)


def allocated(act: Callable[[], object]) -> int:
    """How many bytes more it has at its most than before."""
    before = tracemalloc.get_traced_memory()[0]
    tracemalloc.reset_peak()
    act()
    return tracemalloc.get_traced_memory()[1] - before


def test_a_summary_looks_at_what_has_come_since_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Message, "looks", 0)
    turns = MessageBuilder()
    for _ in range(MANY):
        turns.say(Message(role="user", content="a"))
        turns.compact(Message(role="system", content="b"))
    assert len(turns.joined()) == 2 * MANY
    assert Message.looks == MANY


def test_a_part_of_thinking_copies_none_before_it() -> None:
    turns = MessageBuilder()
    tracemalloc.start()
    try:
        most = max(allocated(lambda: turns.think(THOUGHT)) for _ in range(MANY))
    finally:
        tracemalloc.stop()
    assert most < 20 * len(THOUGHT)
    assert len(turns.joined()[0]["reasoning_content"]) > MANY * len(THOUGHT)


@pytest.mark.parametrize("namespaced", [False, True])
def test_a_tool_is_compared_with_none_before_it(namespaced: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Name, "comparisons", 0)
    monkeypatch.setattr(namespaces, "joined", lambda space, name: Name(f"{space}__{name}"))
    request = request_of(tools=[{"type": "namespace", "name": "n", "tools": TOOLS}] if namespaced else TOOLS)
    if not namespaced:
        tools = [msgspec.structs.replace(tool, name=Name(tool.name)) for tool in request.tools or ()]
        request = msgspec.structs.replace(request, tools=tools)
    functions = [tool["function"]["name"] for tool in to_chat(request)["tools"]]
    assert len(functions) == MANY and all(type(name) is Name for name in functions)
    assert Name.comparisons < 3 * MANY  # each with itself, where it is looked up
