"""/v1/decisions and /v1/systemone: answers are what the model says of the labels' tokens."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import openai
import pytest

from tests.support.server import Server

STATE = "The customer was charged twice, and wants the money back."
QUESTIONS: list[dict[str, Any]] = [
    {"type": "predicate", "instructions": "Is it about money?", "name": "money"},
    {
        "type": "choice",
        "instructions": [{"type": "input_text", "text": "Who is to answer?"}, {"type": "input_json", "data": {"a": 1}}],
        "choices": [{"value": "sales"}, {"value": "billing", "description": "invoices"}, {"value": True}],
    },
    {"type": "score", "instructions": "How urgent is it?", "levels": [{"label": "low"}, {"label": "high"}]},
]
SYSTEM_ONE: dict[str, Any] = {
    "money": {"type": "noul", "instructions": "Is it about money?"},
    "who": {"type": "choice", "instructions": "Who is to answer?", "criteria": {"sales": None, "billing": "invoices"}},
    "urgent": {"type": "score", "instructions": "How urgent is it?", "criteria": ["low", "middle", "high"]},
}


@pytest.fixture
def client(demo_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.base_url, timeout=60) as made:
        yield made


def said(client: httpx.Client, content: str, labels: list[str]) -> tuple[list[float], float]:
    """What a chat says of these labels: how likely each is among them, and all of them."""
    ids = [
        client.post("/tokenize", json={"prompt": one, "add_special_tokens": False}).json()["tokens"] for one in labels
    ]
    asked = {"messages": [{"role": "user", "content": content}], "max_tokens": 1, "temperature": 0, "logprobs": True}
    more = {"logprob_token_ids": [one[0] for one in ids], "return_tokens_as_token_ids": True}
    told = client.post("/v1/chat/completions", json=asked | more).json()["choices"][0]["logprobs"]["content"][0]
    found = {one["token"]: math.exp(one["logprob"]) for one in told["top_logprobs"]}
    each = [found[f"token_id:{one[0]}"] for one in ids]
    return [one / sum(each) for one in each], sum(each)


def test_answers_are_those_of_the_model_and_of_openais_types(client: httpx.Client, demo_server: Server) -> None:
    with openai.OpenAI(base_url=f"{demo_server.base_url}/v1", api_key="x") as sdk:
        made = sdk.decisions.create(model="actorserve-demo", input=STATE, questions=QUESTIONS)  # type: ignore[arg-type]
    predicate, choice, score = made.answers
    assert predicate.type == "predicate" and predicate.name == "money"
    options = "A: yes\nB: no\nAnswer with the label of one option only."  # its tokenizer has no token that is yes
    expected, _ = said(client, f"{STATE}\n\nQuestion:\n\nIs it about money?\n\n{options}", ["A", "B"])
    assert predicate.probability == pytest.approx(expected[0], rel=1e-4)
    assert choice.type == "choice" and choice.name is None
    options = "A: sales\nB: billing - invoices\nC: true\nAnswer with the label of one option only."
    expected, mass = said(
        client, f'{STATE}\n\nQuestion:\n\nWho is to answer?\n\n{{"a":1}}\n\n{options}', ["A", "B", "C"]
    )
    assert [one.probability for one in choice.probabilities] == pytest.approx(expected, rel=1e-4)
    assert [one.value for one in choice.probabilities] == ["sales", "billing", True]
    assert choice.choice == choice.probabilities[expected.index(max(expected))].value
    assert choice.confidence == pytest.approx(max(expected) * mass, rel=1e-3)
    assert score.type == "score" and score.score == pytest.approx(score.probabilities[1].probability)
    assert [(one.value, one.label) for one in score.probabilities] == [(0, "low"), (1, "high")]
    assert made.usage.input_tokens > 0 and made.usage.output_tokens == 0


def test_input_of_items_is_a_conversation(client: httpx.Client) -> None:
    parts = [{"type": "input_text", "text": STATE}, {"type": "input_json", "data": {"paid": [1, 1]}}]
    items = [
        {"role": "user", "content": parts},
        {"type": "function_call", "call_id": "1", "name": "look", "arguments": "{}"},
        {"type": "function_call_output", "call_id": "1", "output": "two"},
    ]
    body = {"input": items, "questions": QUESTIONS[:1]}
    told = client.post("/v1/decisions", json=body)
    assert told.status_code == 200, told.text
    other = client.post("/v1/decisions", json=body | {"input": items[:1]}).json()
    assert told.json()["answers"] != other["answers"] and 0 < other["answers"][0]["probability"] < 1


def test_system_one_has_the_same_answers_by_name(client: httpx.Client) -> None:
    body = {"state": {"text": STATE}, "questions": SYSTEM_ONE, "instructions": "Be strict."}
    told = client.post("/v1/systemone", json=body)
    assert told.status_code == 200, told.text
    answer = told.json()
    money, who, urgent = (answer["answers"][name] for name in SYSTEM_ONE)
    assert money["type"] == "noul" and money["noul"] == money["probabilities"]["yes"]
    assert who["choice"] == max(who["probabilities"], key=who["probabilities"].__getitem__)
    assert urgent["legend"] == {"0": "low", "1": "middle", "2": "high"} and 0 <= urgent["score"] <= 2
    for one in (who, urgent):
        assert sum(one["probabilities"].values()) == pytest.approx(1)
    assert answer["usage"]["output_tokens"] == 3 and answer["id"].startswith("decision-")
    assert answer["joint"] is None
    assert all(0 < one["label_mass"] <= 1 for one in answer["diagnostics"].values())
    drawn = [client.post("/v1/systemone", json=body | {"seed": seed}).json()["answers"] for seed in (1, 1, 2, 3)]
    assert drawn[0] == drawn[1] and len({one["who"]["probabilities"]["sales"] for one in drawn}) > 1
    assert drawn[0]["money"] == drawn[2]["money"]


@pytest.mark.parametrize(
    ("path", "change", "param"),
    [
        ("decisions", {"input": []}, "input"),
        ("decisions", {"input": [{"role": "user", "content": [{"type": "input_video"}]}]}, "input[0].content[0]"),
        ("decisions", {"questions": []}, "questions"),
        ("decisions", {"questions": QUESTIONS[:1] * 401}, "questions"),
        ("decisions", {"questions": [{"type": "box", "instructions": "x"}]}, "questions[0].type"),
        ("decisions", {"questions": [{"type": "predicate", "instructions": ""}]}, "questions[0].instructions"),
        (
            "decisions",
            {"questions": [{"type": "choice", "instructions": "x", "choices": [{"value": "a"}] * 2}]},
            "questions[0].choices",
        ),
        (
            "decisions",
            {"questions": [{"type": "score", "instructions": "x", "levels": [{"label": "a"}]}]},
            "questions[0].levels",
        ),
        ("decisions", {"model": "nothing"}, "model"),
        ("systemone", {"questions": {}}, "questions"),
        ("systemone", {"questions": {"a": {"type": "box"}}}, "questions.a.type"),
        ("systemone", {"questions": {"a": {"type": "choice", "criteria": ["x", "y"]}}}, "questions.a.criteria"),
        ("systemone", {"questions": {"a": {"type": "noul", "criteria": {"maybe": "x"}}}}, "questions.a.criteria"),
        ("systemone", {"state": "a " * 5000}, "state"),
        ("systemone", {"decision_template": "x"}, "decision_template"),
        ("systemone", {"joint": True}, "joint"),
        (
            "systemone",
            {"chat_template_kwargs": {"enable_thinking": True}},
            "chat_template_kwargs.enable_thinking",
        ),
        ("systemone", {"images": ["https://example.com/a.png"]}, "images[0]"),
    ],
)
def test_what_cannot_be(client: httpx.Client, path: str, change: dict[str, Any], param: str) -> None:
    fields = (
        {"input": STATE, "questions": QUESTIONS} if path == "decisions" else {"state": "x", "questions": SYSTEM_ONE}
    )
    answer = client.post(f"/v1/{path}", json=fields | change)
    assert answer.status_code in (400, 404) and answer.json()["error"]["param"] == param, answer.text
