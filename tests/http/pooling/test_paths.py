"""Paths of models that pool before an engine that the test plays."""

from __future__ import annotations

import json
from array import array
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.pooling.spec import MEAN, SEQUENCE, TOKEN, PoolingSpec
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.errors import ApiError
from tests.http.fakes import rendered, say
from tests.http.realtime.test_client_secrets import OfFile
from tests.http.serving import serving

EMBEDS = PoolingSpec(tasks=["embed", "token_embed"], base="", methods=[MEAN], normalize=False, hidden=2, width=2)
CLASSIFIES = msgspec.structs.replace(EMBEDS, tasks=["classify"], head=SEQUENCE, labels=["good", "bad"])
REWARDS = msgspec.structs.replace(EMBEDS, tasks=["token_classify"], head=TOKEN, labels=["good", "bad"])


@pytest.mark.parametrize(
    ("spec", "field"),
    [(EMBEDS, "embedding"), (CLASSIFIES, "probs"), (REWARDS, "data")],
    ids=["embeds", "classifies", "rewards"],
)
@pytest.mark.parametrize("asked", [{"input": "a"}, {"messages": [{"role": "user", "content": "a"}]}])
async def test_an_invocation_is_for_what_the_model_makes(spec: PoolingSpec, field: str, asked: dict[str, Any]) -> None:
    async with serving(pooling=spec) as served:
        client = await served.client()
        client.send("POST", "/invocations", asked)
        job = await served.job()
        rendered(job)
        job.choices[0].pooled = 1, 2, array("f", [0.25, 0.75]).tobytes()
        say(job, 0, "", 1, Finish.STOP)
        answer = await client.answer()
        assert answer.status == 200, answer.body
        assert field in answer.json["data"][0]


async def test_an_input_type_that_no_model_knows() -> None:
    async with serving(pooling=EMBEDS) as served:
        for path, given in (("/v1/embeddings", {"input": "a"}), ("/v2/embed", {"texts": ["a"]})):
            answer = await served.ask("POST", path, {**given, "input_type": "nonsense"})
            assert answer.status == 400 and b"input_type: 'nonsense'" in answer.body


@pytest.mark.parametrize(
    ("path", "asked", "shape"),
    [("/v1/embeddings", {}, [2]), ("/pooling", {"task": "embed"}, [2]), ("/pooling", {"task": "token_embed"}, [1, 2])],
)
async def test_vectors_come_as_bytes(path: str, asked: dict[str, Any], shape: list[int]) -> None:
    async with serving(pooling=EMBEDS) as served:
        client = await served.client()

        async def ask(form: str, **fields: Any) -> Any:
            client.send("POST", path, {"input": ["a", "b"], "encoding_format": form, **asked, **fields})
            job = await served.job()
            rendered(job)
            for choice in job.choices:
                choice.pooled = 1, 2, array("f", [1.0, float(choice.index)]).tobytes()
                say(job, choice.index, "", 1, Finish.STOP)
            return await client.answer()

        whole = await ask("bytes", embed_dtype="float16", endianness="big")
        assert whole.headers["content-type"] == "application/octet-stream"
        assert whole.body == bytes.fromhex("3c00 0000 3c00 3c00")
        about = json.loads(whole.headers["metadata"])
        common = {"embed_dtype": "float16", "endianness": "big", "shape": shape}
        assert about["data"] == [
            {"index": 0, "start": 0, "end": 4, **common},
            {"index": 1, "start": 4, "end": 8, **common},
        ]
        assert about["usage"] == {"prompt_tokens": 10, "total_tokens": 10}
        bare = await ask("bytes_only")
        assert bare.body == array("f", [1, 0, 1, 1]).tobytes() and "metadata" not in bare.headers
        text = await ask("base64", embed_dtype="fp8_e5m2")
        assert [one.get("embedding") or one["data"] for one in text.json["data"]] == ["PAA=", "PDw="]


async def test_bits_do_not_come_as_bytes() -> None:
    async with serving(pooling=EMBEDS) as served:
        body = {"input": "a", "encoding_format": "bytes", "output_dtype": "binary"}
        answer = await served.ask("POST", "/v1/embeddings", body)
        assert answer.status == 400 and answer.error["param"] == "output_dtype"


@pytest.mark.parametrize(
    ("asked", "limit", "status"),
    [
        ({"model": "alias/name"}, None, 404),
        ({"priority": 1 << 40}, None, 400),
        ({"cache_salt": ""}, None, 400),
        ({}, ApiError(429, "Too many."), 429),
    ],
    ids=["model", "range", "salt", "limit"],
)
async def test_nothing_is_divided_for_what_is_refused(
    asked: dict[str, Any], limit: ApiError | None, status: int
) -> None:
    """A renderer would work for it, with each long text."""
    long = "a long text " * 20
    async with serving(pooling=msgspec.structs.replace(EMBEDS, longest_joined=400), accounts=OfFile()) as served:
        served.engine.limit = limit
        answer = await served.ask("POST", "/v1/embeddings", {"input": [long], **asked}, X_Api_Key="theirs")
        assert (answer.status, served.engine.asked) == (status, [])


async def test_scores_of_a_model_that_has_vectors_of_tokens_alone() -> None:
    """Of each token of the query the nearest of the document."""
    texts = {"ask": [[1.0, 0.0], [0.0, 1.0]], "near": [[0.75, 0.25], [0.0, 0.5]], "far": [[0.25, 0.25]]}
    async with serving(pooling=msgspec.structs.replace(EMBEDS, tasks=["token_embed"])) as served:
        client = await served.client()
        asked = {"/score": {"queries": "ask", "documents": ["near", "far"]}}
        for path, body in (asked | {"/rerank": {"query": "ask", "documents": ["far", "near"]}}).items():
            client.send("POST", path, body)
            job = await served.job()
            rendered(job)
            for choice, prompt in zip(job.choices, job.prompts, strict=True):
                assert isinstance(prompt, TextPrompt)
                rows = texts[prompt.text]
                choice.pooled = len(rows), 2, array("f", [number for row in rows for number in row]).tobytes()
                say(job, choice.index, "", 1, Finish.STOP)
            answer = (await client.answer()).json
            if path == "/score":
                assert [one["score"] for one in answer["data"]] == [1.25, 0.5]
            else:
                assert [(one["index"], one["relevance_score"]) for one in answer["results"]] == [(1, 1.25), (0, 0.5)]
        refused = await served.ask("POST", "/v1/embeddings", {"input": "ask"})
        assert refused.status == 400 and b"it has token_embed" in refused.body
