"""Answers that keep to a schema, a pattern, a list or a grammar, over HTTP, in a crowd of answers that do not."""

from __future__ import annotations

import concurrent.futures
import json
import re
import time
from typing import Any

import httpx2 as httpx
import jsonschema
import pytest

from tests.support.demo_model import events
from tests.support.selection import pairwise
from tests.support.server import WAIT_S

HI = [{"role": "user", "content": "What is the capital of France?"}]
CITY = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "maxLength": 12},
        "people": {"type": "integer", "minimum": 0, "maximum": 9},
    },
    "required": ["city", "people"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": "weather", "parameters": CITY}},
    {"type": "function", "function": {"name": "nothing"}},
]


def ask(client: httpx.Client, **body: Any) -> Any:
    path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
    answer = client.post(path, json={"max_tokens": 200, **body})
    assert answer.status_code == 200, answer.text
    return answer.json()


def texts(body: Any) -> list[str]:
    return [choice["message"]["content"] if "message" in choice else choice["text"] for choice in body["choices"]]


def schema(strict: bool | None = None) -> dict[str, Any]:
    return {"type": "json_schema", "json_schema": {"name": "city", "schema": CITY, "strict": strict}}


def by(**outputs: Any) -> dict[str, Any]:
    return {"structured_outputs": outputs}


CASES: list[tuple[dict[str, Any], Any]] = [
    ({"response_format": schema()}, lambda text: jsonschema.validate(json.loads(text), CITY)),
    ({"response_format": schema(True)}, lambda text: jsonschema.validate(json.loads(text), CITY)),
    (by(json=CITY), lambda text: jsonschema.validate(json.loads(text), CITY)),
    (by(json=json.dumps(CITY)), lambda text: jsonschema.validate(json.loads(text), CITY)),
    (by(regex=r"[a-f]{3}-\d{2,4}"), lambda text: re.fullmatch(r"[a-f]{3}-\d{2,4}", text) or 1 / 0),
    (by(choice=["Paris is it", "Rome", "🦊 or so"]), lambda text: ["Paris is it", "Rome", "🦊 or so"].index(text)),
    (by(grammar='start: "a" ("b" | "c")~3'), lambda text: re.fullmatch("a[bc]{3}", text) or 1 / 0),
    (by(grammar='root ::= "yes" | "no" [0-9]'), lambda text: re.fullmatch(r"yes|no\d", text) or 1 / 0),
    ({"guided_choice": ["Rome", "Oslo"]}, lambda text: ["Rome", "Oslo"].index(text)),
    (
        {"response_format": {"type": "json_object", "schema": CITY}},
        lambda text: jsonschema.validate(json.loads(text), CITY),
    ),
    (
        {
            "response_format": {
                "type": "structural_tag",
                "structures": [{"begin": "<x>", "schema": CITY, "end": "</x>"}],
                "triggers": ["<x"],
            },
            "max_tokens": 30,
        },
        str,
    ),
]


@pytest.mark.parametrize(
    ("case", "path"),
    pairwise(CASES, ["chat", "text"]),
    ids=lambda one: one if isinstance(one, str) else json.dumps(one[0])[:60],
)
def test_what_is_asked_for_comes(client: httpx.Client, case: tuple[dict[str, Any], Any], path: str) -> None:
    fields, check = case
    prompt: dict[str, Any] = {"messages": HI} if path == "chat" else {"prompt": "Write it:"}
    body = ask(client, **prompt, n=4, temperature=1.5, seed=8, **fields)
    for text in texts(body):
        check(text)
    again = ask(client, **prompt, n=4, temperature=1.5, seed=8, **fields)
    assert texts(again) == texts(body)
    streamed = events(client, **prompt, n=4, temperature=1.5, seed=8, ignore_eos=False, **{"max_tokens": 200, **fields})
    for choice in body["choices"]:
        parts = [one for event in streamed for one in event["choices"] if one["index"] == choice["index"]]
        got = "".join(part["delta"].get("content", "") if "delta" in part else part["text"] for part in parts)
        assert got == texts(body)[choice["index"]]


def test_any_object(client: httpx.Client) -> None:
    """With 200 tokens the model may not come to an end; what ends by itself is an object."""
    body = ask(client, messages=HI, response_format={"type": "json_object"}, n=8, temperature=0.8, seed=1)
    ended = [text for text, one in zip(texts(body), body["choices"], strict=True) if one["finish_reason"] == "stop"]
    assert ended and all(isinstance(json.loads(text), dict) for text in ended)
    assert all(text.lstrip().startswith("{") for text in texts(body))


def test_others_in_the_batch_are_left_alone(client: httpx.Client) -> None:
    plain: dict[str, Any] = {"messages": HI, "temperature": 1, "seed": 3, "max_tokens": 40}
    alone = texts(ask(client, **plain))
    with concurrent.futures.ThreadPoolExecutor(12) as pool:
        bound = [
            pool.submit(ask, client, messages=HI, temperature=1.2, seed=seed, response_format=schema())
            for seed in range(6)
        ]
        free = [pool.submit(ask, client, **plain) for _ in range(6)]
        assert all(texts(one.result()) == alone for one in free)
        for one in bound:
            (text,) = texts(one.result())
            jsonschema.validate(json.loads(text), CITY)


def test_masks_that_leave_nothing_give_way(client: httpx.Client) -> None:
    body = ask(client, prompt="x", min_tokens=30, **by(choice=["yes", "no"]))
    assert texts(body)[0] in ("yes", "no") and body["choices"][0]["finish_reason"] == "stop"


def test_tokens_that_are_forced(client: httpx.Client) -> None:
    """A grammar may name tokens by their ids, so that an answer that was recorded comes again, step by step."""
    recorded = [311, 40, 256, 641, 574]
    forced = by(grammar="start: " + " ".join(f"<[{token}]>" for token in recorded))
    (choice,) = ask(client, prompt="Once", return_token_ids=True, max_tokens=len(recorded), **forced)["choices"]
    assert choice["token_ids"] == recorded and choice["finish_reason"] == "length"


def test_tokens_without_a_choice_are_counted(client: httpx.Client) -> None:
    def counted() -> int:
        (found,) = re.findall(
            r"^actorserve:forced_tokens_total\{.*\} ([0-9]+)", client.get("/metrics").text, re.MULTILINE
        )
        return int(found)

    before, deadline = counted(), time.monotonic() + WAIT_S
    body = ask(client, prompt="x", max_tokens=60, **by(regex="It is (forced|drawn), and so is all of this."))
    assert body["choices"][0]["text"].endswith(", and so is all of this.")
    while (found := counted() - before) < 4:
        assert time.monotonic() < deadline, found
    assert found < body["usage"]["completion_tokens"]


def test_the_length_limit_cuts(client: httpx.Client) -> None:
    body = ask(client, prompt="x", max_tokens=2, **by(choice=["a long text that is not to be finished"]))
    assert body["choices"][0]["finish_reason"] == "length" and texts(body)[0]


ENDLESS = 'start: z{40} b{0,50} b{0,50}\nz: "zq"\nb: A b | "" | b b\nA: /a/'  # ever more ways to read what was drawn


@pytest.mark.parametrize(("n", "prompt"), pairwise([1, 2], [{"messages": HI}, {"prompt": "x"}]), ids=str)
def test_a_grammar_that_fails_late_is_an_error(client: httpx.Client, prompt: dict[str, Any], n: int) -> None:
    """Not an answer that ended; and nobody else's."""
    path = "/v1/chat/completions" if "messages" in prompt else "/v1/completions"
    asked: dict[str, Any] = {"max_tokens": 500, "min_tokens": 400, "n": n, "temperature": 0, **by(grammar=ENDLESS)}
    error = client.post(path, json=prompt | asked)
    assert error.status_code == 500 and error.json()["error"]["code"] == "grammar_failed"
    assert error.json()["error"]["param"] == "structured_outputs"
    streamed = client.post(path, json=prompt | asked | {"stream": True}).text.split("\n\n")
    assert "grammar_failed" in streamed[-3] and streamed[-2] == "data: [DONE]"
    assert len(streamed) > 10, "what there is no choice of comes several tokens at a time"
    assert '"stop"' not in "".join(streamed)
    (text,) = texts(ask(client, **prompt, max_tokens=2 * 40, temperature=0, **by(grammar=ENDLESS)))
    assert text == "zq" * 40, "the next one is not cut by what failed"


def test_a_pattern_that_explodes_is_refused(client: httpx.Client) -> None:
    words = {"type": "string", "pattern": r"^$|(^(?:\S+\s+){0,99}\S+$)", "minLength": 1, "maxLength": 5000}
    wanted = {"type": "object", "properties": {"text": words}, "required": ["text"]}
    for _ in range(2):
        answer = client.post("/v1/chat/completions", json={"messages": HI, **by(json=wanted)})
        assert answer.status_code == 400 and "too many expressions" in answer.json()["error"]["message"]


NAMED = {"type": "function", "function": {"name": "weather"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


@pytest.mark.parametrize("choice", ["required", NAMED, ALLOWED])
def test_forced_calls(client: httpx.Client, choice: Any) -> None:
    asked: dict[str, Any] = {"messages": HI, "tools": TOOLS, "tool_choice": choice, "temperature": 1, "seed": 2}
    reason = "stop" if choice == NAMED else "tool_calls"  # as with OpenAI
    body = ask(client, **asked, n=3, parallel_tool_calls=False)
    for one in body["choices"]:
        (call,) = one["message"]["tool_calls"]
        assert one["message"]["content"] is None and one["finish_reason"] == reason
        arguments = json.loads(call["function"]["arguments"])
        if call["function"]["name"] == "weather":
            jsonschema.validate(arguments, CITY)
        else:
            assert arguments == {} and choice == "required"
    assert len({call["id"] for one in body["choices"] for call in one["message"]["tool_calls"]}) == 3
    streamed = events(client, **asked, parallel_tool_calls=False, ignore_eos=False, max_tokens=200)
    deltas = [event["choices"][0]["delta"] for event in streamed]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    assert (
        "".join(call["function"]["arguments"] for call in calls)
        == (body["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"])
    )
    assert streamed[-1]["choices"][0]["finish_reason"] == reason


STRICT = [{"type": "function", "function": {"name": "weather", "parameters": CITY, "strict": True}}]


def starting_with(client: httpx.Client, text: str) -> dict[str, Any]:
    """What makes the model begin with this text, where it may."""
    (token,) = client.post("/tokenize", json={"prompt": text, "add_special_tokens": False}).json()["tokens"]
    return {"logit_bias": {str(token): 100}}


def test_a_call_or_an_answer_by_a_schema(client: httpx.Client) -> None:
    wanted = {"type": "object", "properties": {"ok": {"type": "boolean"}}, "required": ["ok"]}
    form = {"type": "json_schema", "json_schema": {"name": "ok", "schema": wanted, "strict": True}}
    asked: dict[str, Any] = {"messages": HI, "tools": STRICT, "response_format": form, "temperature": 0}
    for stream in (False, True):
        fields = asked | starting_with(client, "<") | {"parallel_tool_calls": False}
        if stream:
            parts = [event["choices"][0] for event in events(client, **fields, ignore_eos=False, max_tokens=200)]
            calls = [call["function"] for part in parts for call in part["delta"].get("tool_calls", ())]
            name, arguments = calls[0]["name"], "".join(call["arguments"] for call in calls)
            reason = parts[-1]["finish_reason"]
        else:
            (choice,) = ask(client, **fields)["choices"]
            (call,) = choice["message"]["tool_calls"]
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            reason = choice["finish_reason"]
        assert (name, reason) == ("weather", "tool_calls")
        jsonschema.validate(json.loads(arguments), CITY)
    (choice,) = ask(client, **asked, **starting_with(client, "{"))["choices"]
    jsonschema.validate(json.loads(choice["message"]["content"]), wanted)
    assert "tool_calls" not in choice["message"] and choice["finish_reason"] == "stop"
    forced = ask(client, **asked, tool_choice="required", parallel_tool_calls=False)["choices"][0]
    assert forced["message"]["tool_calls"][0]["function"]["name"] == "weather", "the call wins"


def test_strict_tools_leave_free_text_as_it_is(client: httpx.Client) -> None:
    asked: dict[str, Any] = {"messages": HI, "temperature": 1, "seed": 5, "max_tokens": 40}
    assert texts(ask(client, **asked, tools=STRICT)) == texts(ask(client, **asked, tools=TOOLS[:1]))
    unknown = {"type": "function", "function": {"name": "f", "parameters": {"not": {}}, "strict": True}}
    answer = client.post("/v1/chat/completions", json={"messages": HI, "tools": [unknown]})
    assert answer.status_code == 400 and answer.json()["error"]["param"] == "tools"


REFUSED: list[tuple[dict[str, Any], str, str]] = [
    ({"response_format": {"type": "yaml"}}, "response_format.type", "json_schema"),
    ({"response_format": {"type": "json_schema"}}, "response_format.json_schema", "schema"),
    (
        {"response_format": {"type": "json_schema", "json_schema": {"name": "a"}}},
        "response_format.json_schema.schema",
        "",
    ),
    (by(regex="(("), "structured_outputs", "regex"),
    (by(json={"type": "nothing"}), "structured_outputs", "nothing"),
    (by(json="{"), "structured_outputs", "JSON"),
    (by(choice=[1]), "structured_outputs.choice", "strings"),
    ({"guided_json": {"type": "nothing"}}, "guided_json", "nothing"),
    ({"response_format": {"type": "json_object", "schema": {"type": "nothing"}}}, "response_format", "nothing"),
    (by(grammar="start: nobody"), "structured_outputs", "nobody"),
    (by(regex="a", choice=["b"]), "structured_outputs", "one of"),
    ({**by(regex="a"), "response_format": {"type": "json_object"}}, "structured_outputs", "Only one"),
]


@pytest.mark.parametrize(("fields", "param", "words"), REFUSED, ids=str)
def test_what_cannot_be_compiled_is_refused_with_the_reason(
    client: httpx.Client, fields: dict[str, Any], param: str, words: str
) -> None:
    answer = client.post("/v1/chat/completions", json={"messages": HI, **fields})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param) and words in error["message"], error


def test_tool_choices_that_cannot_be(client: httpx.Client) -> None:
    for fields in (
        {"tool_choice": "required"},
        {"tools": TOOLS, "tool_choice": {"type": "function", "function": {"name": "nobody"}}},
        {"tools": TOOLS, "tool_choice": "perhaps"},
    ):
        answer = client.post("/v1/chat/completions", json={"messages": HI, **fields})
        assert answer.status_code == 400 and answer.json()["error"]["param"].startswith("tool_choice")
