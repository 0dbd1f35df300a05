"""Tools that come and go amid a conversation."""

from __future__ import annotations

from typing import Any

from .test_requests import HI, TOOL, chat, messages, text


def test_tools_come_and_go_by_what_the_system_says() -> None:
    def change(kind: str, **tool: Any) -> dict[str, Any]:
        return {"type": f"tool_{kind}", "tool": tool}

    def named(kind: str, name: str) -> dict[str, Any]:
        return change(kind, type="tool_reference", name=name)

    def offered(*changes: dict[str, Any]) -> list[str]:
        said = {"role": "system", "content": [text("Other tools."), *changes]}
        made = chat(messages=[*HI, said], tools=[TOOL, TOOL | {"name": "bash"}])
        assert made["messages"][1:] == [{"role": "system", "content": "Other tools."}]
        return [tool["function"]["name"] for tool in made.get("tools", [])]

    gone, back = named("removal", "bash"), named("addition", "bash")
    assert offered() == offered(back) == offered(gone, back) == ["weather", "bash"]
    assert offered(back, gone) == ["weather"] and offered(gone, named("removal", "weather")) == []
    new = TOOL | {"name": "search", "description": "new"}
    assert offered(change("addition", type="tool_definition", definition=new), gone) == ["weather", "search"]
    other = chat(
        messages=[*HI, {"role": "system", "content": [change("addition", type="tool_definition", definition=new)]}],
        tools=[TOOL | {"name": "search"}],
        tool_choice={"type": "tool", "name": "search"},
    )
    assert other["messages"] == HI and [tool["function"]["description"] for tool in other["tools"]] == ["new"]


def test_hosted_tools_are_passed_over_where_all_others_are_gone() -> None:
    hosted = {"type": "web_search_20250305", "name": "web_search"}
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "weather"}}
    said = [*HI, {"role": "system", "content": [gone]}]
    assert chat(messages=said, tools=[hosted, TOOL]) == chat(messages=said, tools=[TOOL]) == chat()
    added = {"type": "tool_addition", "tool": {"type": "tool_definition", "definition": TOOL}}
    assert chat(messages=[*HI, {"role": "system", "content": [added, gone]}], tools=[hosted]) == chat()


def test_turns_with_nothing_but_changes_between_them_are_one() -> None:
    """Templates that want turns to alternate refuse two of one role."""
    gone = {"type": "tool_removal", "tool": {"type": "tool_reference", "name": "weather"}}
    said = messages(("user", "a"), ("system", [gone]), ("user", "b"), tools=[TOOL])
    assert said == [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    said = messages(("user", "a"), ("system", [gone, text("c")]), ("user", "b"), tools=[TOOL])
    assert [turn["role"] for turn in said] == ["user", "system", "user"]
