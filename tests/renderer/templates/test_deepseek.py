"""Chats of DeepSeek V3.2 and V4 as the code beside their checkpoints writes them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.options.config import make_config
from actorserve.actors.renderer.templates.chat_template import ChatTemplate, find_templates
from actorserve.http.output.parsers.registry import detect
from tests.model.test_tokenizer import model_in

BEGIN, USER, ASSISTANT, END = "<｜begin▁of▁sentence｜>", "<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>"
ON = {"thinking": True}
OFF = {"thinking": False}
LOW = ON | {"reasoning_effort": "low"}  # without a text of its own
TOOL = {"name": "look", "description": "Sieht nach <&>.", "parameters": {"type": "object"}}
TOOLS: list[dict[str, Any]] = [
    {"type": "function", "function": TOOL},
    {"type": "function", "function": {"name": "now"}},
]
SCHEMAS = '{"name": "look", "description": "Sieht nach <&>.", "parameters": {"type": "object"}}\n{"name": "now"}'
LOOKS = (
    '<｜DSML｜invoke name="look">\n<｜DSML｜parameter name="at" string="true">Köln "mitte"</｜DSML｜parameter>\n'
    '<｜DSML｜parameter name="days" string="false">[1, {"ü": null}]</｜DSML｜parameter>\n</｜DSML｜invoke>\n'
    '<｜DSML｜invoke name="now">\n\n</｜DSML｜invoke>'
)
PROMPT: dict[str, Any] = {"role": "user", "content": "q"}
SYSTEM: dict[str, Any] = {"role": "system", "content": "Be brief."}


def template_of(folder: Path, architecture: str) -> ChatTemplate:
    return ChatTemplate(make_config({}), model_in(folder, architecture=architecture))


@pytest.fixture
def v32(tmp_path: Path) -> ChatTemplate:
    return template_of(tmp_path, "DeepseekV32ForCausalLM")


@pytest.fixture
def v4(tmp_path: Path) -> ChatTemplate:
    return template_of(tmp_path, "DeepseekV4ForCausalLM")


def said(content: str, thought: str = "") -> dict[str, Any]:
    return {"role": "assistant", "content": content, **({"reasoning_content": thought} if thought else {})}


def rounds() -> list[dict[str, Any]]:
    """Calls whose results come in another order than they."""
    look = {"name": "look", "arguments": '{"at": "K\\u00f6ln \\"mitte\\"", "days": [1, {"ü": null}]}'}
    called = [{"id": "a", "function": look}, {"id": "b", "function": {"name": "now", "arguments": "{}"}}]
    results = [{"role": "tool", "tool_call_id": name, "content": f"result {name}"} for name in "ba"]
    return [PROMPT, {"role": "assistant", "reasoning": "I look.", "tool_calls": called}, *results]


def test_v32_does_not_think_where_nobody_asks(v32: ChatTemplate) -> None:
    messages = [SYSTEM, PROMPT, said("a", "hm"), PROMPT]
    before = f"{BEGIN}Be brief.{USER}q{ASSISTANT}</think>a{END}{USER}q{ASSISTANT}"
    assert v32.render(messages) == f"{before}</think>"
    assert v32.render(messages, variables={"enable_thinking": True}) == f"{before}<think>"
    assert v32.render(messages, variables={"reasoning_effort": "low"}) == f"{before}<think>"
    for off in ({"reasoning_effort": "none"}, OFF | {"reasoning_effort": "high"}):
        assert v32.render(messages, variables=off) == f"{before}</think>"


@pytest.mark.parametrize(("variables", "thought", "mark"), [({}, "", "</think>"), (ON, "I look.</think>", "<think>")])
def test_v32_calls(v32: ChatTemplate, variables: dict[str, Any], thought: str, mark: str) -> None:
    text = v32.render([SYSTEM, *rounds()], TOOLS, variables=variables)
    head, _, rest = text.partition("## Tools\n\nYou have access")
    assert head == f"{BEGIN}Be brief.\n\n"
    assert rest.partition("\n<functions>\n")[2] == (
        f"{SCHEMAS}\n</functions>\n{USER}q{ASSISTANT}{mark}{thought}\n\n<｜DSML｜function_calls>\n{LOOKS}\n"
        f"</｜DSML｜function_calls>{END}\n\n<function_results>\n<result>result a</result>\n<result>result b</result>\n"
        f"</function_results>\n\n{mark}"
    )


def test_v32_tools_come_first_without_a_system(v32: ChatTemplate) -> None:
    assert v32.render([PROMPT], TOOLS).startswith(f"{BEGIN}\n\n## Tools\n\nYou have access to a set of tools you can")


def test_v32_developer_asks_with_tools(v32: ChatTemplate) -> None:
    asked = {"role": "developer", "content": "q", "tools": TOOLS, "response_format": {"type": "object"}}
    text = v32.render([PROMPT, asked], variables=ON)
    assert text.startswith(f"{BEGIN}{USER}q{ASSISTANT}</think>{USER}\n\n## Tools\n\n")
    assert text.endswith(
        "</functions>\n\n\n## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
        f"""{{"type": "object"}}\n\n# The user's message is: q{ASSISTANT}<think>"""
    )


@pytest.mark.parametrize(
    ("variables", "begins"),
    [
        ({}, "Reasoning Effort: Absolute maximum with no shortcuts permitted.\nYou MUST"),
        ({"reasoning_effort": "xhigh"}, "Reasoning Effort: Absolute maximum"),
        ({"reasoning_effort": "max"}, "Reasoning Effort: Beyond maximum — exhaustive,"),
        *(({"reasoning_effort": effort}, f"{USER}q{ASSISTANT}<think>") for effort in ("minimal", "low", "medium")),
        ({"reasoning_effort": "none"}, f"{USER}q{ASSISTANT}</think>"),
        ({"enable_thinking": False, "reasoning_effort": "max"}, f"{USER}q{ASSISTANT}</think>"),
    ],
)
def test_v4_thinks_more_or_less(v4: ChatTemplate, variables: dict[str, Any], begins: str) -> None:
    assert v4.render([PROMPT], variables=variables).startswith(BEGIN + begins)


def test_v4_effort_ends_with_an_empty_line(v4: ChatTemplate) -> None:
    for effort in ("high", "max"):
        text = v4.render([SYSTEM, PROMPT], variables={"reasoning_effort": effort})
        assert text.endswith(f"ed.\n\nBe brief.{USER}q{ASSISTANT}<think>")


@pytest.mark.parametrize(("variables", "thought", "mark"), [(OFF, "", "</think>"), (LOW, "I look.</think>", "<think>")])
def test_v4_calls(v4: ChatTemplate, variables: dict[str, Any], thought: str, mark: str) -> None:
    """All that was thought is shown with tools, also what the user has spoken behind."""
    text = v4.render([SYSTEM, *rounds(), PROMPT], TOOLS, variables=variables)
    head, _, rest = text.partition("## Tools\n\nYou have access")
    assert head == f"{BEGIN}Be brief.\n\n"
    assert rest.partition("\n### Available Tool Schemas\n\n")[2] == (
        f"{SCHEMAS}\n\nYou MUST strictly follow the above defined tool name and parameter schemas to invoke tool "
        f"calls.\n{USER}q{ASSISTANT}{mark}{thought}\n\n<｜DSML｜tool_calls>\n{LOOKS}\n</｜DSML｜tool_calls>{END}{USER}"
        f"<tool_result>result a</tool_result>\n\n<tool_result>result b</tool_result>\n\nq{ASSISTANT}{mark}"
    )


def test_v4_thoughts_of_earlier_turns_are_dropped(v4: ChatTemplate) -> None:
    messages = [PROMPT, said("a", "hm"), PROMPT, said("b", "so"), PROMPT]
    dropped = f"{BEGIN}{USER}q{ASSISTANT}</think>a{END}{USER}q{ASSISTANT}</think>b{END}{USER}q{ASSISTANT}<think>"
    kept = (
        f"{BEGIN}{USER}q{ASSISTANT}<think>hm</think>a{END}{USER}q{ASSISTANT}<think>so</think>b{END}{USER}q{ASSISTANT}"
    )
    assert v4.render(messages, variables=LOW) == dropped
    assert v4.render(messages, variables=LOW | {"drop_thinking": False}) == f"{kept}<think>"


def test_v4_roles_of_its_own(v4: ChatTemplate) -> None:
    reminder = {"role": "latest_reminder", "content": "It is Monday."}
    asked = {"role": "developer", "content": "q", "tools": TOOLS}
    text = v4.render([SYSTEM, reminder, asked], variables=LOW)
    assert text.startswith(f"{BEGIN}Be brief.<｜latest_reminder｜>It is Monday.{USER}q\n\n## Tools\n\nYou have access")
    assert text.endswith(f"to invoke tool calls.\n{ASSISTANT}<think>")
    task: list[dict[str, Any]] = [PROMPT, said("a"), PROMPT | {"task": "action"}]
    before = f"{BEGIN}{USER}q{ASSISTANT}</think>a{END}{USER}q"
    assert v4.render(task, variables=OFF) == f"{before}{ASSISTANT}</think><｜action｜>"
    assert v4.render([*task[:2], PROMPT | {"task": "title"}, said("b", "hm")], variables=LOW) == (
        f"{before}<｜title｜>b{END}"
    )
    with pytest.raises(ValueError, match="task is one of action, query"):
        v4.render([PROMPT | {"task": "sing"}])


def test_v4_parts_have_an_empty_line_between_them(v4: ChatTemplate) -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
    messages = [{"role": "system", "content": parts}, {"role": "user", "content": parts}, PROMPT]
    assert v4.render(messages, variables=OFF) == f"{BEGIN}a\n\nb{USER}a\n\nb\n\nq{ASSISTANT}</think>"


def test_v4_system_amid_a_conversation(v4: ChatTemplate) -> None:
    text = v4.render([PROMPT, SYSTEM, said("a"), SYSTEM, PROMPT, SYSTEM], variables=OFF)
    assert text == (f"{BEGIN}{USER}qBe brief.{ASSISTANT}</think>a{END}Be brief.{USER}qBe brief.{ASSISTANT}</think>")


@pytest.mark.parametrize("name", ["v32", "v4"])
@pytest.mark.parametrize("variables", [OFF, LOW])
def test_developer_of_openais_clients_is_the_system(
    name: str, variables: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    template: ChatTemplate = request.getfixturevalue(name)
    developer = SYSTEM | {"role": "developer"}
    for tools in (None, TOOLS):
        expected = template.render([SYSTEM, PROMPT], tools, variables=variables)
        assert template.render([developer, PROMPT], tools, variables=variables) == expected


@pytest.mark.parametrize("name", ["v32", "v4"])
def test_an_answer_goes_on(name: str, request: pytest.FixtureRequest) -> None:
    template: ChatTemplate = request.getfixturevalue(name)
    messages = [PROMPT, said("so ", "hm")]
    for variables, before in ((OFF, "</think>"), (LOW, "<think>hm</think>")):
        text = template.render(messages, None, None, variables, False, True)
        assert text == f"{BEGIN}{USER}q{ASSISTANT}{before}so "


@pytest.mark.parametrize("name", ["v32", "v4"])
def test_nobody_is_to_speak(name: str, request: pytest.FixtureRequest) -> None:
    template: ChatTemplate = request.getfixturevalue(name)
    assert template.render([PROMPT], variables=OFF, add_generation_prompt=False) == f"{BEGIN}{USER}q"
    text = template.render(rounds(), variables=OFF, add_generation_prompt=False)
    assert text.endswith(("</function_results>", "</tool_result>"))


@pytest.mark.parametrize("name", ["v32", "v4"])
def test_a_role_that_is_not_known_is_refused(name: str, request: pytest.FixtureRequest) -> None:
    template: ChatTemplate = request.getfixturevalue(name)
    with pytest.raises(ValueError, match="the role critic is none of system, developer, user, assistant, tool"):
        template.render([PROMPT, {"role": "critic", "content": "bad"}])


@pytest.mark.parametrize(
    ("architecture", "parsers"),
    [
        ("DeepseekV32ForCausalLM", ("deepseek_v32", "deepseek_v3")),
        ("DeepseekV4ForCausalLM", ("deepseek_v4", "deepseek_v4")),
    ],
)
def test_parsers_are_found(architecture: str, parsers: tuple[str, str], tmp_path: Path) -> None:
    assert detect(find_templates(make_config({}), model_in(tmp_path, architecture=architecture))["default"]) == parsers
