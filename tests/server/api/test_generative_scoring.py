"""/generative_scoring: how likely a model goes on with one token of some."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.support.server import Server

QUERY, ITEMS = "The capital of", [" France is", " Italy is", " nothing"]
LABELS = [5, 9, 300]


@pytest.fixture
def client(demo_server: Server) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=demo_server.base_url, timeout=60) as made:
        yield made


def score(client: httpx.Client, **fields: Any) -> httpx.Response:
    body = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS}
    return client.post("/generative_scoring", json=body | fields)


def tokens(client: httpx.Client, text: str, special: bool) -> list[int]:
    found: list[int] = client.post("/tokenize", json={"prompt": text, "add_special_tokens": special}).json()["tokens"]
    return found


def scores(answer: httpx.Response) -> list[float]:
    assert answer.status_code == 200, answer.text
    return [one["score"] for one in answer.json()["data"]]


def logprobs(client: httpx.Client, prompt: list[int]) -> list[float]:
    """What completions say of the labels."""
    asked = {"prompt": prompt, "max_tokens": 1, "temperature": 0, "logprobs": 0, "logprob_token_ids": LABELS}
    told = client.post("/v1/completions", json=asked | {"return_tokens_as_token_ids": True}).json()
    best = told["choices"][0]["logprobs"]["top_logprobs"][0]
    return [best[f"token_id:{label}"] for label in LABELS]


def test_sglangs_scores_are_those_of_all_labels(client: httpx.Client) -> None:
    """Of query and item as one text."""
    body = {"query": QUERY, "items": ITEMS, "label_token_ids": LABELS}
    expected = [logprobs(client, tokens(client, QUERY + item, True)) for item in ITEMS]
    answer = client.post("/v1/score", json=body)
    assert answer.status_code == 200 and answer.json()["object"] == "scoring", answer.text
    for told, one in zip(answer.json()["scores"], expected, strict=True):
        assert told == pytest.approx([math.exp(logprob) for logprob in one], rel=1e-4)
    among = client.post("/v1/score", json=body | {"apply_softmax": True, "items": ITEMS[0]}).json()["scores"]
    assert [sum(one) for one in among] == pytest.approx([1]) and len(among[0]) == len(LABELS)
    ids = {"query": tokens(client, QUERY, True), "items": [tokens(client, ITEMS[0], False)], "item_first": True}
    assert len(client.post("/v1/score", json=body | ids).json()["scores"]) == 1
    for wrong, field in (
        ({"items": [[1]]}, "items"),
        ({"label_token_ids": []}, "label_token_ids"),
        ({"label_token_ids": [1 << 30]}, "label_token_ids"),
    ):
        refused = client.post("/v1/score", json=body | wrong)
        assert refused.status_code == 400 and refused.json()["error"]["param"].startswith(field), refused.text
    pairs = client.post("/v1/score", json={"text_1": "a", "text_2": "b"})
    assert pairs.status_code == 400 and "generates text" in pairs.text


def test_scores_are_those_of_the_model(client: httpx.Client) -> None:
    query = tokens(client, QUERY, True)
    expected = [logprobs(client, query + tokens(client, item, False)) for item in ITEMS]
    answer = score(client, apply_softmax=False)
    assert scores(answer) == pytest.approx([math.exp(one[0]) for one in expected], rel=1e-4)
    assert answer.json()["usage"]["completion_tokens"] == len(ITEMS) and answer.json()["object"] == "list"
    among = [math.exp(one[0]) / sum(map(math.exp, one)) for one in expected]
    assert scores(score(client)) == pytest.approx(among, rel=1e-4)
    items = [tokens(client, item, False) for item in ITEMS]
    assert scores(score(client, query=query, items=items)) == pytest.approx(among, rel=1e-4)
    turned = scores(score(client, item_first=True, add_special_tokens=False))
    assert turned != pytest.approx(among, rel=1e-3)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("items", []),
        ("query", ""),
        ("label_token_ids", []),
        ("label_token_ids", [1, 1]),
        ("label_token_ids", [1 << 30]),
        ("items", ["x"] * 1025),
    ],
)
def test_what_cannot_be(client: httpx.Client, field: str, value: Any) -> None:
    answer = score(client, **{field: value})
    assert answer.status_code == 400 and answer.json()["error"]["param"].startswith(field), answer.text
