"""What chat clients send: conversations, tools and options, in the form in which transformers is given them."""

from __future__ import annotations

from typing import Any

USER = {"role": "user", "content": "What is 2 + 2?"}
ANSWER = {"role": "assistant", "content": "  4, of course.\n"}
SYSTEM = {"role": "system", "content": "Be brief. <|im_end|> é 🙂"}
THINKING = {"role": "assistant", "content": "4", "reasoning_content": "two and two"}
STRANGE = "<b>\"quoted\" & 'so'</b>\t你好 🙂🏽\u200d é\\n {{ x }} {% if %} \u2028 </s>"


def call(name: str = "add", number: int = 1, **arguments: Any) -> dict[str, Any]:
    """A call of a tool, its arguments as an object."""
    return {"id": f"call_{number:05}", "type": "function", "function": {"name": name, "arguments": arguments}}


def result(content: Any, number: int = 1, **more: Any) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": f"call_{number:05}", "content": content, **more}


def calls(*made: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"role": "assistant", "tool_calls": list(made), **more}


NESTED = call("search", 2, query=STRANGE, options={"deep": [1, 2.5, None, True], "empty": {}}, tags=["a", "é"])
CONVERSATIONS: dict[str, list[dict[str, Any]]] = {
    "one": [USER],
    "system": [SYSTEM, USER],
    "many": [SYSTEM, USER, ANSWER, {"role": "user", "content": " And\n3? "}],
    "ends with an answer": [USER, ANSWER],
    "empty texts": [{"role": "user", "content": ""}, {"role": "assistant", "content": ""}, USER],
    "only spaces": [{"role": "system", "content": " \n"}, {"role": "user", "content": "\n\n a \n"}, ANSWER, USER],
    "reasoning": [USER, THINKING, USER, THINKING],
    "reasoning in the text": [USER, {"role": "assistant", "content": "<think>\nhm\n</think>\n\nyes"}],
    "thinking": [USER, {"role": "assistant", "content": "4", "thinking": "easy"}, USER],
    "call": [USER, calls(call(a=2, b="é"), content=""), result("4")],
    "call without content": [SYSTEM, USER, calls(call(a=2)), result("4"), ANSWER],
    "call with content null": [USER, calls(call(a=2), content=None), result("4"), {**ANSWER, "tool_calls": None}, USER],
    "parallel calls": [USER, calls(call(a=2), NESTED, content="Two:"), result("4"), result(STRANGE, 2), ANSWER, USER],
    "call without arguments": [USER, calls(call(), content=""), result("")],
    "call with reasoning": [USER, calls(call(a=1), content="", reasoning_content="\nhm\n"), result("1"), THINKING],
    "calls one after the other": [
        USER,
        calls(call(a=1), content=""),
        result("1"),
        calls(NESTED, content=""),
        result("x", 2),
    ],
    "result with a name": [USER, calls(call(a=1), content=""), result('{"a": 1}', name="add")],
    "two answers": [USER, ANSWER, ANSWER],
    "name": [{"role": "user", "name": "Ann", "content": "Hi"}],
    "strange characters": [{"role": "system", "content": STRANGE}, {"role": "user", "content": STRANGE}],
    "developer": [{"role": "developer", "content": "Rules"}, USER],
    "flags": [{"role": "system", "content": "Do. /no_think"}, USER, ANSWER, {"role": "user", "content": "x /nothink"}],
    "user without content": [USER, {"role": "assistant", "content": None}, USER],
    "system in the middle": [USER, ANSWER, SYSTEM, USER],
}


def parts(*texts: str) -> list[dict[str, Any]]:
    return [{"type": "text", "text": text} for text in texts]


IN_PARTS: dict[str, list[dict[str, Any]]] = {
    "parts": [{"role": "user", "content": parts("one")}],
    "two parts": [SYSTEM, {"role": "user", "content": parts("one ", " two")}, ANSWER, USER],
    "parts of all": [
        {**SYSTEM, "content": parts(STRANGE)},
        {**USER, "content": parts("a", "")},
        {**ANSWER, "content": parts("b ", "c")},
    ],
    "no parts": [{"role": "user", "content": []}],
    "result in parts": [USER, calls(call(a=1), content=""), result(parts("4"))],
    "result in two parts": [USER, calls(call(a=1), content=""), result(parts("4 ", " and no more"))],
}
TOOLS: list[dict[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": "add",
            "description": 'Adds <two> "numbers" & é\nand says so.',
            "parameters": {
                "type": "object",
                "properties": {
                    "a": {"type": "integer", "description": "the first", "default": 0},
                    "b": {"type": ["number", "null"]},
                    "mode": {"type": "string", "enum": ["fast", "slow"], "default": "fast"},
                },
                "required": ["a"],
            },
        },
    },
    {
        "type": "function",
        "function": {
            "name": "search",
            "description": "Finds.",
            "strict": True,
            "parameters": {
                "type": "object",
                "properties": {
                    "query": {"type": "string"},
                    "tags": {"type": "array", "items": {"type": "string"}, "nullable": True},
                    "options": {
                        "type": "object",
                        "properties": {"deep": {"oneOf": [{"type": "array"}, {"type": "null"}]}},
                    },
                    "any": {},
                },
            },
        },
    },
    {"type": "function", "function": {"name": "now", "description": "The time.", "parameters": {"type": "object"}}},
]
DOCUMENTS = [{"title": "A long title, which is cut", "text": "x\ny"}, {"doc_id": 7, "text": STRANGE}]
OPTIONS: dict[str, dict[str, Any]] = {
    "prompt": {"add_generation_prompt": True},
    "no prompt": {"add_generation_prompt": False},
    "tools": {"add_generation_prompt": True, "tools": TOOLS},
    "no tools": {"add_generation_prompt": True, "tools": []},
    "documents": {"add_generation_prompt": True, "documents": DOCUMENTS},
    "not thinking": {"add_generation_prompt": True, "variables": {"enable_thinking": False, "date_string": "today"}},
    "thinking": {
        "add_generation_prompt": True,
        "tools": TOOLS,
        "variables": {"enable_thinking": True, "thinking": True, "reasoning_effort": "high", "x": STRANGE},
    },
    "continue": {"add_generation_prompt": False, "continue_final_message": True},
}
