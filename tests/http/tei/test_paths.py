"""Text Embeddings Inference's paths before an engine that the test plays."""

from __future__ import annotations

import math
from array import array
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.pooling.spec import MEAN, SEQUENCE, PoolingSpec
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Generation, Pooling
from actorserve.actors.protocol.topics.prompts import PairPrompt, TextPrompt
from actorserve.http.generation.job import Job
from actorserve.http.settings import MediaRules
from tests.http.fakes import rendered, say
from tests.http.serving import Served, serving

EMBEDS = PoolingSpec(
    tasks=["embed", "token_embed"],
    base="",
    methods=[MEAN],
    normalize=False,
    hidden=2,
    width=2,
    prompts={"query": "find: "},
)
LABELS = msgspec.structs.replace(
    EMBEDS, tasks=["classify"], head=SEQUENCE, labels=["good", "bad", "so so"], activation="softmax"
)


async def ask(served: Served, path: str, rows: list[list[float]], **body: Any) -> tuple[Job, Any]:
    """What the engine was asked, and the answer where it has made these rows."""
    client = await served.client()
    client.send("POST", path, body)
    job = await served.job()
    rendered(job)
    for choice, row in zip(job.choices, rows, strict=True):
        choice.pooled = len(row) // 2 if path == "/embed_all" else 1, 2, array("f", row).tobytes()
        say(job, choice.index, "", 1, Finish.STOP)
    answer = await client.answer()
    assert answer.status == 200, answer.body
    return job, answer.json


def pooling(job: Job) -> Pooling:
    found = msgspec.msgpack.decode(job.params[0], type=Generation).sampling.pooling
    assert found is not None
    return found


@pytest.mark.parametrize("path", ["/embed", "/"])
async def test_vectors(path: str) -> None:
    async with serving(pooling=EMBEDS) as served:
        job, made = await ask(served, path, [[1, 2]], inputs="a")
        assert made == [[1, 2]] and pooling(job).activation == "normalize"
        assert job.prompts == [TextPrompt("a")] and job.rendering["truncate_prompt_tokens"] is None
        given = {"truncate": True, "truncation_direction": "Left", "prompt_name": "query", "dimensions": 1}
        job, made = await ask(served, path, [[1, 2], [3, 4]], inputs=["a", "b"], normalize=False, **given)
        assert made == [[1, 2], [3, 4]] and (pooling(job).activation, pooling(job).dimensions) == ("", 1)
        assert job.prompts == [TextPrompt("find: a"), TextPrompt("find: b")]
        assert (job.rendering["truncate_prompt_tokens"], job.rendering["keep_first"]) == (-1, False)


async def test_a_vector_of_each_token() -> None:
    async with serving(pooling=EMBEDS) as served:
        job, made = await ask(served, "/embed_all", [[1, 2, 3, 4], [5, 6]], inputs=["a", "b"])
        assert made == [[[1, 2], [3, 4]], [[5, 6]]] and pooling(job).task == "token_embed"


@pytest.mark.parametrize("path", ["/similarity", "/"])
async def test_how_near_sentences_are(path: str) -> None:
    inputs = {"source_sentence": "a", "sentences": ["b", "c"]}
    async with serving(pooling=EMBEDS) as served:
        job, made = await ask(
            served, path, [[1, 0], [0, 2], [3, 3]], inputs=inputs, parameters={"prompt_name": "query"}
        )
    assert made == pytest.approx([0, math.sqrt(0.5)])
    assert job.prompts == [TextPrompt("find: a"), TextPrompt("find: b"), TextPrompt("find: c")]


async def predicted(served: Served, path: str, count: int, **body: Any) -> tuple[Job, Any]:
    client = await served.client()
    client.send("POST", path, body)
    job = await served.job()
    rendered(job)
    for choice in job.choices[:count]:
        choice.pooled = 1, 3, array("f", [0.25, 0.5, 0.125]).tobytes()
        say(job, choice.index, "", 1, Finish.STOP)
    return job, (await client.answer()).json


BEST = [{"score": 0.5, "label": "bad"}, {"score": 0.25, "label": "good"}, {"score": 0.125, "label": "so so"}]


@pytest.mark.parametrize("path", ["/predict", "/"])
async def test_labels(path: str) -> None:
    async with serving(pooling=LABELS) as served:
        job, made = await predicted(served, path, 1, inputs="a")
        assert made == BEST and pooling(job).activation == "softmax" and job.prompts == [TextPrompt("a")]
        job, made = await predicted(served, path, 1, inputs=["a", "b"], raw_scores=True)
        assert made == BEST and pooling(job).activation == ""
        assert job.prompts == [PairPrompt("a", "b", "", "inputs")]
        job, made = await predicted(served, path, 2, inputs=[["a"], ["b", "c"]])
        assert made == [BEST, BEST]
        assert job.prompts == [TextPrompt("a"), PairPrompt("b", "c", "", "inputs[1]")]


async def test_a_pipelines_answer_is_a_list_for_each_text() -> None:
    """As huggingface_hub's text_classification reads it."""
    async with serving(pooling=LABELS) as served:
        _, made = await predicted(served, "/", 1, inputs="a", parameters={})
        assert made == [BEST]
        job, made = await predicted(served, "/", 1, inputs="a", parameters={"top_k": 1, "function_to_apply": "none"})
        assert made == [BEST[:1]] and pooling(job).activation == ""


async def test_tokens_of_texts_and_texts_of_tokens(served: Served) -> None:
    whole = [
        {"id": one, "text": text, "special": False, "start": None, "stop": None} for one, text in ((1, "a"), (2, "b"))
    ]
    assert (await served.ask("POST", "/tokenize", {"inputs": "ab"})).json == [whole]
    assert (await served.ask("POST", "/tokenize", {"inputs": ["a", "b"], "add_special_tokens": False})).json == [
        whole
    ] * 2
    assert served.engine.asked[-1] == TextPrompt("b", False)
    assert (await served.ask("POST", "/tokenize", {"prompt": "ab"})).json["tokens"] == [1, 2], "as others ask it"
    assert (await served.ask("POST", "/decode", {"ids": [1, 2]})).json == ["text"]
    assert (await served.ask("POST", "/decode", {"ids": [[1], [2], []]})).json == ["text", "text", ""]
    assert served.engine.asked[-1] == [2]


async def test_special_tokens_are_told() -> None:
    async with serving(special_tokens=lambda: {"a": 1}) as served:
        (told,) = (await served.ask("POST", "/tokenize", {"inputs": "ab"})).json
    assert [one["special"] for one in told] == [True, False]


async def test_what_the_model_is() -> None:
    async with serving(pooling=EMBEDS) as served:
        about = (await served.ask("GET", "/info")).json
        assert about["model_type"] == {"embedding": {"pooling": "mean"}} and about["max_input_length"] == 64
    async with serving(pooling=LABELS) as served:
        names = (await served.ask("GET", "/info")).json["model_type"]["classifier"]
        assert names["id2label"]["1"] == "bad" and names["label2id"]["bad"] == 1
    async with serving(pooling=msgspec.structs.replace(LABELS, labels=["near"])) as served:
        assert "reranker" in (await served.ask("GET", "/info")).json["model_type"]


@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/embed", {}, "inputs"),
        ("/embed", {"inputs": []}, "inputs"),
        ("/embed", {"inputs": "a", "prompt_name": "x"}, "prompt_name"),
        ("/embed", {"inputs": "a", "truncation_direction": "up"}, "truncation_direction"),
        ("/embed", {"inputs": "a", "encoding_format": "base64"}, "encoding_format"),
        ("/embed", {"inputs": "a", "dimensions": 3}, "dimensions"),
        ("/embed_sparse", {"inputs": "a"}, "/embed_sparse"),
        ("/predict", {"inputs": "a"}, "classify"),
        ("/similarity", {"inputs": {"source_sentence": "a", "sentences": []}}, "inputs.sentences"),
        ("/decode", {"ids": [1, [2]]}, "ids"),
        ("/decode", {"ids": [-1]}, "ids"),
        ("/tokenize", {"inputs": ["a"] * 257}, "inputs"),
        ("/tokenize", {"inputs": "a", "model": "x"}, "x"),
    ],
)
async def test_what_cannot_be_is_refused_by_its_name(path: str, body: Any, field: str) -> None:
    async with serving(pooling=EMBEDS) as served:
        answer = await served.ask("POST", path, body)
    assert answer.status in (400, 404) and field in answer.json["error"]
    assert answer.json.get("error_type", "") == ("validation" if answer.status == 400 else "")


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"inputs": []}, "inputs"),
        ({"inputs": [["a", "b", "c"]]}, "inputs[0]"),
        ({"inputs": "a", "parameters": {"function_to_apply": "sigmoid"}}, "parameters.function_to_apply"),
        ({"inputs": "a", "parameters": {"top_k": 0}}, "top_k"),
    ],
)
async def test_of_labels_likewise(body: Any, field: str) -> None:
    async with serving(pooling=LABELS) as served:
        answer = await served.ask("POST", "/predict", body)
    assert answer.status == 400 and field in answer.json["error"]


async def test_a_model_that_generates_makes_none(served: Served) -> None:
    for path in ("/embed", "/embed_all", "/predict", "/similarity"):
        answer = await served.ask("POST", path, {"inputs": "a"})
        assert answer.status == 400 and "generates text" in answer.json["error"]


async def test_a_conversation_with_pictures_is_as_long_as_others_take_it() -> None:
    """/tokenize is of several APIs: this one's texts keep to --max-body-bytes."""
    parts = [{"type": "image_url", "image_url": {"url": f"data:image/png;base64,{'A' * 3000}"}}]
    rules = MediaRules({"image": 1}, 10_000, local_files=False)
    async with serving(media=rules, max_body_bytes=1000) as served:
        answer = await served.ask("POST", "/tokenize", {"messages": [{"role": "user", "content": parts}]})
        assert answer.status == 200 and answer.json["tokens"] == [1, 2]
        answer = await served.ask("POST", "/tokenize", {"inputs": "a" * 2000})
        assert answer.status == 413 and "1000 bytes" in answer.body.decode()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/tokenize", b'{"prompt": "a", "parameters": "\xff"}'),
        ("/", b'{"inputs": "a", "parameters": "\xff"}'),
        ("/embeddings", b'{"content": "\xff"}'),
    ],
)
async def test_a_body_that_is_no_utf_8_is_refused(path: str, body: bytes) -> None:
    async with serving(pooling=EMBEDS) as served:
        answer = await served.ask("POST", path, body)
    assert answer.status == 400 and "not UTF-8" in answer.body.decode()
