"""llama.cpp's paths before an engine that the test plays: older vectors, adapters, and prompts that are read alone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.messages import Finish
from actorserve.http.errors import ApiError
from actorserve.http.generation.times import JobTimes
from actorserve.http.settings import AdapterNames, ServedAdapter
from tests.http.fakes import finish_all, rendered, say
from tests.http.realtime.test_client_secrets import OfFile
from tests.http.serving import PATIENCE_S, Served, serving

SPEC = PoolingSpec(tasks=["embed"], base="", methods=["mean"], normalize=True, hidden=2, width=2)


class Adapters(AdapterNames):
    """Two."""

    enabled = True

    def all(self) -> list[ServedAdapter]:
        return [ServedAdapter(1, "tiny", "/a"), ServedAdapter(2, "other", "/b")]


@pytest.mark.parametrize("streamed", [False, True])
async def test_a_prompt_is_read_and_nothing_said(served: Served, streamed: bool) -> None:
    body = {"prompt": "a", "n_predict": 0, "stream": streamed, "return_tokens": True}
    client = await served.client()
    client.send("POST", "/completion", body)
    job = await served.job()
    job.choices[0].ref = (3 << 32) | 7
    assert job.rendering["cap"] == 1
    finish_all(job)
    answer = await client.answer()
    text = answer.body.decode()
    assert answer.status == 200 and text.count("data: ") == (1 if streamed else 0)
    for part in ('"content":""', '"tokens":[]', '"tokens_predicted":0', '"stop_type":"limit"', '"n_predict":0'):
        assert part in text, part
    assert '"id_slot":0' in text  # of one, as /props says


async def test_how_it_is_generated_by_its_names() -> None:
    async with serving(
        sampling_defaults={"temperature": 0.5, "max_new_tokens": 9, "repetition_penalty": 1.5}
    ) as served:
        props = (await served.ask("GET", "/props")).json
        told = props["default_generation_settings"]["params"]
        assert told | {"temperature": 0.5, "n_predict": 9, "repeat_penalty": 1.5, "top_p": 1, "min_p": 0} == told
        assert props["is_sleeping"] is False and told["seed"] == 2**32 - 1
        await served.engine.administration.sleep(1, "keep", False, 1)
        assert (await served.ask("GET", "/props")).json["is_sleeping"] is True
        client = await served.client()
        client.send(
            "POST", "/completion", {"prompt": "a", "top_p": 0.25, "seed": 7, "logit_bias": [[5, False], [6, 1.5]]}
        )
        job = await served.job()
        rendered(job)
        say(job, 0, "yes", 1, Finish.STOP)
        settings = (await client.answer()).json["generation_settings"]
        assert settings | told | {"top_p": 0.25, "seed": 7, "ignore_eos": False, "n_probs": 0} == settings
        assert settings["logit_bias"] == [{"token": 5, "bias": -100}, {"token": 6, "bias": 1.5}]


async def test_rates_are_those_of_the_time_behind_the_first_token(served: Served) -> None:
    second = 1_000_000_000
    served.engine.job_times = JobTimes(scheduled=second, first_token=2 * second, last_token=6 * second)
    client = await served.client()
    for tokens, rate, each in ((3, 0.5, 2000.0), (1, 0.0, 0.0)):
        client.send("POST", "/completion", {"prompt": "a"})
        job = await served.job()
        rendered(job)
        say(job, 0, "yes", tokens, Finish.STOP)
        times = (await client.answer()).json["timings"]
        assert (times["predicted_n"], times["predicted_ms"]) == (tokens, 4000.0)
        assert (times["predicted_per_second"], times["predicted_per_token_ms"]) == (rate, each)
        assert times["prompt_per_second"] == times["prompt_n"] == 3


async def test_a_prompt_that_is_too_long_is_told_by_its_tokens(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/completion", {"prompt": "a"})
    job = await served.job()
    job.fail(ApiError(400, "It is too long.", "prompt", "context_length_exceeded", lengths=(70, 64)))
    error = (await client.answer()).json["error"]
    assert (error["type"], error["n_prompt_tokens"], error["n_ctx"]) == ("exceed_context_size_error", 70, 64)


async def test_a_share_that_is_none_is_named(served: Served) -> None:
    for share in (-0.5, 1.5):
        answer = await served.ask("POST", "/completion", {"prompt": "a", "typical_p": share})
        assert answer.status == 400 and "typical_p must be greater than 0" in answer.json["error"]["message"]


@pytest.mark.parametrize(
    ("path", "field"), [("/embedding", "content"), ("/embedding", "input"), ("/embeddings", "content")]
)
async def test_older_vectors(path: str, field: str) -> None:
    async with serving(pooling=SPEC) as served:
        answer = asyncio.ensure_future(served.ask("POST", path, {field: ["a", "b"]}))
        job = await served.job()
        for choice in job.choices:
            choice.pooled = (1, 2, np.array([0.6, 0.8], np.float32).tobytes())
        finish_all(job)
        first, second = (await asyncio.wait_for(answer, PATIENCE_S)).json
        assert [first["index"], second["index"]] == [0, 1]
        assert np.allclose(first["embedding"], [[0.6, 0.8]])
        for body, text in (
            ({}, "content"),
            ({"content": "a", "input": "a"}, "content"),
            ({field: "a", "embd_normalize": 1}, "embd_normalize"),
            ({field: 5}, field),
            ({field: []}, field),
        ):
            refused = await served.ask("POST", "/embedding", body)
            assert refused.status == 400 and text in refused.json["error"]["message"], refused.body


async def test_adapters_are_those_that_a_key_may_name() -> None:
    async with serving(adapters=Adapters()) as served:
        listed = (await served.ask("GET", "/lora-adapters")).json
        assert [one["id"] for one in listed] == [1, 2] and not any(one["scale"] for one in listed)
        for body, status, text in (
            ([{"id": 1, "scale": 0}], 200, ""),
            ([{"id": 1, "scale": 0.5}], 400, "[0].scale"),
            ([{"id": 1, "scale": 0}, {"id": 3, "scale": 0}], 400, "[1].id"),
            ([{"id": 1}], 400, "scale"),
            ({}, 400, "array"),
        ):
            asked: Any = body
            answer = await served.ask("POST", "/lora-adapters", asked)
            assert answer.status == status and (status == 200 or text in answer.json["error"]["message"]), answer.body
    async with serving(adapters=Adapters(), accounts=OfFile()) as served:
        listed = (await served.ask("GET", "/lora-adapters", X_Api_Key="theirs")).json
        assert [one["name"] for one in listed] == ["tiny"]
        hidden = await served.ask("POST", "/lora-adapters", [{"id": 2, "scale": 0}], X_Api_Key="theirs")
        assert hidden.status == 400 and "there is no adapter 2" in hidden.json["error"]["message"]
