"""Cohere's clients ask for labels, and whether their key is right."""

from __future__ import annotations

import asyncio
from array import array
from typing import Any

import cohere
import msgspec
import pytest

from actorserve.actors.model.pooling.spec import MEAN, SEQUENCE, PoolingSpec
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import SIGMOID, SOFTMAX
from tests.http.fakes import rendered, say
from tests.http.serving import Served, serving

LABELS = PoolingSpec(
    tasks=["classify"],
    base="",
    methods=[MEAN],
    normalize=False,
    hidden=2,
    width=2,
    head=SEQUENCE,
    labels=["good", "bad", "new"],
    activation=SOFTMAX,
)
ROWS = [0.5, 0.25, 0.25], [0.25, 0.5, 0.75]


def client_of(served: Served) -> cohere.AsyncClient:
    return cohere.AsyncClient(api_key="-", base_url=f"http://127.0.0.1:{served.port}")


async def labelled(spec: PoolingSpec, **fields: Any) -> Any:
    async with serving(pooling=spec) as served:
        asked = asyncio.ensure_future(client_of(served).classify(inputs=["one", "two"], **fields))
        job = await served.job()
        rendered(job)
        for choice, row in zip(job.choices, ROWS, strict=True):
            choice.pooled = 1, 3, array("f", row).tobytes()
            say(job, choice.index, "", 1, Finish.STOP)
        return job, await asked


async def test_one_label_of_each_text() -> None:
    _, told = await labelled(LABELS)
    first, second = told.classifications
    assert (first.input, first.prediction, first.confidence, first.predictions) == ("one", "good", 0.5, ["good"])
    assert (second.prediction, second.confidences, second.classification_type) == ("new", [0.75], "single-label")
    assert {name: one.confidence for name, one in second.labels.items()} == {"good": 0.25, "bad": 0.5, "new": 0.75}
    assert first.id != second.id


async def test_several_labels_of_a_text() -> None:
    """Of a model whose labels do not shut each other out."""
    _, told = await labelled(msgspec.structs.replace(LABELS, activation=SIGMOID))
    first, second = told.classifications
    assert (first.predictions, second.predictions, second.confidences) == (["good"], ["bad", "new"], [0.5, 0.75])
    assert first.prediction is None and first.classification_type == "multi-label"


@pytest.mark.parametrize(
    ("fields", "keep", "keep_first"),
    [({}, -1, True), ({"truncate": "START"}, -1, False), ({"truncate": "NONE"}, None, True)],
)
async def test_long_texts_are_cut_as_it_says(fields: dict[str, Any], keep: int | None, keep_first: bool) -> None:
    job, _ = await labelled(LABELS, **fields)
    assert (job.rendering["truncate_prompt_tokens"], job.rendering["keep_first"]) == (keep, keep_first)


async def test_what_cannot_be_is_refused_by_its_name() -> None:
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"inputs": ["a"], "examples": [{"text": "a", "label": "b"}]}, "examples: labels are those"),
        ({"inputs": ["a"], "input": "b"}, "inputs stands in the place of input"),
        ({"inputs": []}, "inputs must not be an empty list"),
        ({"inputs": "a"}, "inputs"),
        ({"inputs": ["a"], "truncate": "MIDDLE"}, "truncate"),
    ]
    async with serving(pooling=LABELS) as served:
        for path in ("/v1/classify", "/cohere/v1/classify"):
            for body, words in wrong:
                answer = await served.ask("POST", path, body)
                assert answer.status == 400 and words in answer.body.decode(), answer.body
        assert "message" in answer.json, "below /cohere errors are Cohere's"


async def test_a_key_is_right() -> None:
    """As the SDKs of other languages ask; that of Python does no more."""
    async with serving(api_keys=["mine"]) as served:
        for path in ("/v1/check-api-key", "/cohere/v1/check-api-key"):
            right = await served.ask("POST", path, Authorization="Bearer mine")
            assert (right.status, right.json) == (200, {"valid": True})
            wrong = await served.ask("POST", path, Authorization="Bearer another")
            assert wrong.status == 401 and "message" in wrong.json
