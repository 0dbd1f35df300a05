"""Several models behind one app: which one a request is for, by its name, its path, or what it holds."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

import pytest

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.http.handlers.models import ModelApis, index_of, index_of_query
from actorserve.http.routes import ROUTES
from actorserve.http.settings import Catalog, Settings
from tests.http.fakes import FakeEngine, finish_all
from tests.http.realtime.talk import talking
from tests.http.realtime.test_client_secrets import OfFile
from tests.http.serving import PATIENCE_S, SETTINGS, Served, serving

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}
GO_ON: dict[str, Any] = {"path": "/v1/completions", "origin": "", "choices": []}


def catalog_of(*changes: dict[str, Any]) -> Catalog:
    catalog = Catalog()
    for number, own in enumerate(changes):
        catalog.models.append(replace(SETTINGS, model=number, catalog=catalog, **own))
    return catalog


SECOND = {"served": ["second"], "max_model_len": 7, "max_body_bytes": 2000, "tool_parser": None}
POOLER = {
    "served": ["pooler", "other-name"],
    "pooling": PoolingSpec(tasks=["embed"], base="", methods=["mean"], normalize=True, hidden=4, width=4),
}


@asynccontextmanager
async def served_both() -> AsyncIterator[Served]:
    catalog = catalog_of({}, SECOND, POOLER)
    first: dict[str, Any] = {"model": 0, "catalog": catalog}
    async with serving(**first) as served:
        yield served


async def test_a_job_is_begun_with_the_engine_of_its_model() -> None:
    async with served_both() as served:
        client = await served.client()
        client.send("POST", "/v1/chat/completions", {**CHAT, "model": "second"})
        job = await served.engine.others[1].jobs.get()
        assert not served.engine.jobs.qsize() and job.prompts
        client.leave()


async def test_one_that_cannot_be_served_is_listed_with_the_reason_which_who_asks_it_is_told() -> None:
    catalog = Catalog({"bad": "its file is cut off"})
    catalog.models.append(replace(SETTINGS, catalog=catalog))
    async with serving(catalog=catalog, any_model_name=True) as served:
        *others, card = (await served.ask("GET", "/v1/models")).json["data"]
        assert [one["status"] for one in others] == [{"value": "loaded"}] * 2
        status = {"value": "unloaded", "failed": True, "exit_code": 1, "message": "its file is cut off"}
        assert (card["id"], card["status"]) == ("bad", status)
        assert "bad" not in str((await served.ask("GET", "/v1/models?endpoint=chat")).json)
        said = "The model `bad` cannot be served: its file is cut off"
        for method, path, body in (
            ("POST", "/v1/chat/completions", {**CHAT, "model": "bad"}),
            ("POST", "/v1/completions", {"prompt": "a", "model": "bad"}),
            ("GET", "/v1/models/bad", None),
            ("GET", "/props?model=bad", None),
        ):
            answer = await served.ask(method, path, body)
            assert answer.status == 404 and answer.json["error"]["message"] == said, path
        answer = await served.ask("POST", "/api/chat", {"model": "bad:latest", **CHAT})
        assert answer.status == 404 and said in answer.json["error"]
    async with serving(catalog=catalog, accounts=OfFile()) as served:
        assert "bad" not in str((await served.ask("GET", "/v1/models", X_Api_Key="theirs")).json)


async def test_ollamas_clients_are_told_of_those_in_memory() -> None:
    async with served_both() as served:
        served.engine.administration.unloaded.add(1)
        models = (await served.ask("GET", "/api/ps")).json["models"]
        assert [one["name"] for one in models] == ["tiny", "alias/name", "pooler", "other-name"]


@pytest.mark.parametrize("path", ["/api/chat", "/api/generate"])
@pytest.mark.parametrize(("options", "heeds"), [({"models_max": 1}, True), ({}, False)])
async def test_ollamas_clients_load_and_unload_with_a_request_for_nothing(
    path: str, options: dict[str, Any], heeds: bool
) -> None:
    async with serving(model=0, catalog=catalog_of(options, SECOND | options), **options) as served:
        unloaded = served.engine.administration.unloaded
        for keep_alive, state, reason in ((0, {1} if heeds else set(), "unload"), ("5m", set(), "load")):
            answer = await served.ask("POST", path, {"model": "second", "keep_alive": keep_alive})
            assert answer.json["done_reason"] == reason and unloaded == state


async def test_each_is_loaded_and_unloaded_by_its_name() -> None:
    catalog = catalog_of({"admin_api_key": "master"}, SECOND)
    first: dict[str, Any] = {"model": 0, "catalog": catalog, "admin_api_key": "master"}
    async with serving(**first) as served:
        states = {"tiny": "loaded", "alias/name": "loaded", "second": "loaded"}

        async def ask(path: str, name: str) -> int:
            answer = await served.ask("POST", path, {"model": name}, X_Api_Key="master")
            assert answer.status != 200 or answer.json == {"success": True}
            cards = (await served.ask("GET", "/models")).json["data"]
            assert {card["id"]: card["status"]["value"] for card in cards} == states
            return answer.status

        states["second"] = "unloaded"
        assert await ask("/models/unload", "second") == 200
        assert await ask("/models/unload", "second") == 200
        assert await ask("/models/unload", "other") == 404
        states["second"] = "loaded"
        assert await ask("/models/load", "second") == 200
        assert (await served.ask("POST", "/models/unload", {"model": "second"})).status == 401


async def test_without_an_admins_key_clients_load_where_models_change_places() -> None:
    asked = {"model": "second"}
    for options, key, status in (
        ({"models_max": 1}, "", 200),
        ({"models_autoload": False}, "", 200),
        ({"models_max": 1, "api_keys": ["k"]}, "k", 200),
        ({"models_max": 1, "api_keys": ["k"]}, "", 401),
        ({"models_max": 1, "admin_api_key": "master", "api_keys": ["k"]}, "k", 403),
        ({}, "", 404),
    ):
        catalog = catalog_of(options, SECOND)
        async with serving(model=0, catalog=catalog, **options) as served:
            answer = await served.ask("POST", "/models/unload", asked, **({"X_Api_Key": key} if key else {}))
            assert (answer.status, served.engine.administration.unloaded) == (status, {1} if status == 200 else set())
            paths = (await served.ask("GET", "/openapi.json", **({"X_Api_Key": key} if key else {}))).json.get(
                "paths", {}
            )
            assert ("/models/load" in paths) == (status in (200, 403))
    catalog = catalog_of({"models_max": 1}, SECOND)
    async with serving(model=0, catalog=catalog, models_max=1, accounts=OfFile()) as served:
        for name, status in (("alias/name", 404), ("second", 404), ("tiny", 200)):
            answer = await served.ask("POST", "/models/unload", {"model": name}, X_Api_Key="theirs")
            assert answer.status == status, name


@pytest.mark.parametrize(
    ("options", "autoload", "status", "is_loaded"),
    [
        ({"models_max": 1}, "false", 400, False),
        ({"models_max": 1}, "maybe", 400, False),
        ({"models_max": 1, "models_autoload": False}, "true", 200, True),
        ({"models_max": 1, "models_autoload": False, "admin_api_key": "master"}, "true", 200, False),
    ],
)
async def test_a_request_says_whether_its_model_is_loaded(
    options: dict[str, Any], autoload: str, status: int, is_loaded: bool
) -> None:
    async with serving(model=0, catalog=catalog_of(options, SECOND | options), **options) as served:
        served.engine.administration.unloaded.add(1)
        client = await served.client()
        client.send("POST", f"/v1/chat/completions?autoload={autoload}", {**CHAT, "model": "second"})
        if status == 200:
            finish_all(await served.engine.others[1].jobs.get())
        answer = await client.answer()
        assert answer.status == status
        assert status == 200 or "autoload" in str(answer.json) or "second is not loaded" in str(answer.json)
        assert (not served.engine.administration.unloaded) == is_loaded
        assert (await served.ask("POST", "/v1/chat/completions?autoload=false", {"model": "tiny"})).status == 400


async def test_a_realtime_session_is_of_the_model_it_was_connected_for() -> None:
    """No name within it makes it another's; the error says how."""
    async with served_both() as served, talking(served) as talk:
        error = await talk.error("session.update", session={"model": "second"})
        assert error["param"] == "session.model" and "/v1/realtime?model=second" in error["message"]
    async with served_both() as served, talking(served, "?model=second") as talk:
        await talk.send("session.update", session={"model": "second"})
        assert (await talk.next())["session"]["model"] == "second"


async def test_lists_have_all_and_errors_name_who_would_do() -> None:
    async with served_both() as served:
        models = (await served.ask("GET", "/v1/models")).json["data"]
        assert [(one["id"], one["max_model_len"]) for one in models[-3:]] == [
            ("second", 7),
            ("pooler", SETTINGS.max_model_len),
            ("other-name", SETTINGS.max_model_len),
        ]
        assert (await served.ask("GET", "/v1/models/other-name")).json["root"] == "pooler"
        assert (await served.ask("GET", "/v1/models/nobody")).status == 404
        wrong = await served.ask("POST", "/v1/embeddings", {"input": "a", "model": "second"})
        assert (
            wrong.status == 400
            and "second makes no embeddings" in wrong.error["message"]
            and "pooler does" in wrong.error["message"]
        )
        wrong = await served.ask("POST", "/v1/chat/completions", {**CHAT, "model": "other-name"})
        assert wrong.status == 400 and f"{SETTINGS.served[0]} or second does" in wrong.error["message"]
        assert (await served.ask("POST", "/v1/embeddings", {"input": "a", "model": "nobody"})).status == 404


async def test_a_body_may_be_as_long_as_its_model_takes() -> None:
    async with served_both() as served:
        body = {"model": "second", "messages": [{"role": "user", "content": "a" * 3000}]}
        answer = await served.ask("POST", "/v1/chat/completions", body)
        assert answer.status == 413 and "2000 bytes" in answer.error["message"]


def wrapped(model: str, count: int) -> dict[str, Any]:
    """Goes on with a stream whose body has so many line ends."""
    body = {**CHAT, "model": model, "stream": True, "messages": [{"role": "user", "content": "\n" * count}]}
    origin = {"origin": "00000000000000aa.6553f100.7.1", "choices": [{}], "path": "/v1/chat/completions"}
    return {**origin, "body": json.dumps(body)}


@pytest.mark.parametrize("model", [SETTINGS.served[0], "second", None])
async def test_a_stream_of_a_long_body_is_gone_on_with(model: str | None) -> None:
    """In the request that goes on its body is a string, in which each line end and quote takes more bytes."""
    most = 2000 if model == "second" else SETTINGS.max_body_bytes
    async with served_both() if model else serving() as served:
        engine = served.engine.others[1] if model == "second" else served.engine
        name = model or SETTINGS.served[0]
        client = await served.client()
        client.send("POST", "/go_on", wrapped(name, most // 2))
        assert (await client.answer()).status == 413, "of its own it has no more than any"
        client.send("POST", "/go_on", wrapped(name, most // 2 - 200))
        async with asyncio.timeout(PATIENCE_S):
            assert (await engine.jobs.get()).prompts
        client.leave()


async def test_tokens_beside_a_long_body_are_bounded() -> None:
    async with serving(max_body_bytes=1000) as served:
        body = wrapped(SETTINGS.served[0], 10)
        answer = await served.ask("POST", "/go_on", {**body, "choices": [{"tokens": [1] * 60_000}]})
        assert answer.status == 413 and answer.error["param"] == "choices"


@pytest.mark.parametrize(
    ("path", "body", "model"),
    [
        ("/v1/embeddings", {"input": "a"}, 2),
        ("/v1/chat/completions", {}, 0),
        ("/v1/chat/completions", {"model": "second"}, 1),
        ("/v1/chat/completions", {"model": "nobody"}, 0),
        ("/v1/chat/completions", {"model": 5}, 0),
        ("/v1/chat/completions", {"name": "second"}, 0),
        ("/v1/responses", {"model": "second"}, 1),
        ("/v1/messages", {"model": "second"}, 1),
        ("/api/chat", {"model": "second:latest"}, 1),
        ("/api/show", {"name": "pooler:latest"}, 2),
        ("/v2/embed", {"model": "other-name"}, 2),
        ("/tokenize", {"model": "pooler"}, 2),
        ("/completion", {"model": "second"}, 1),
        ("/invocations", {"model": "pooler"}, 2),
        ("/go_on", {**GO_ON, "body": '{"model": "second"}'}, 1),
    ],
)
def test_who_is_asked(path: str, body: dict[str, Any], model: int) -> None:
    catalog = catalog_of({}, SECOND, POOLER)
    assert found(catalog.models[0], path, body) == model


def test_who_listens() -> None:
    speech = SpeechSpec(languages={}, tasks={}, end=1, no_timestamps=2, mels=1, frames=2)
    hears = EncoderSpec(longest=8, decoder_longest=8, start=[1], filler=0, speech=speech)
    catalog = catalog_of({}, {"served": ["listener"], "encoder": hears})
    assert found(catalog.models[0], "/v1/audio/transcriptions", {}) == 1
    assert found(catalog.models[0], "/v1/chat/completions", {}) == 0


def found(settings: Settings, path: str, body: dict[str, Any]) -> int:
    """The number of the model."""
    route = next(route for route in ROUTES if route.path == path and route.method == "post")
    return index_of(settings, json.dumps(body).encode(), route)


async def test_a_name_that_is_no_utf_8_is_refused() -> None:
    async with served_both() as served:
        answer = await served.ask("POST", "/v1/chat/completions", b'{"model": "\xff"}')
    assert answer.status == 400 and "not UTF-8" in answer.error["message"]


def test_one_model_costs_nothing() -> None:
    apis = ModelApis(FakeEngine(), SETTINGS)
    route = next(route for route in ROUTES if route.path == "/v1/chat/completions")
    assert apis.handler(route) == apis.first.chat


def test_who_is_asked_over_a_websocket() -> None:
    speech = SpeechSpec(languages={}, tasks={}, end=1, no_timestamps=2, mels=1, frames=2)
    hears = EncoderSpec(longest=8, decoder_longest=8, start=[1], filler=0, speech=speech)
    catalog = catalog_of(POOLER, {"served": ["second"]}, {"served": ["listener"], "encoder": hears})
    route = next(route for route in ROUTES if route.upgrades)
    wanted: list[tuple[dict[str, str], int]] = [
        ({}, 1),
        ({"intent": "conversation"}, 1),
        ({"intent": "transcription"}, 2),
        ({"model": "listener"}, 2),
        ({"model": "second", "intent": "transcription"}, 1),
        ({"model": "pooler"}, 0),
    ]
    for query, model in wanted:
        assert index_of_query(catalog.models[0], query, route) == model


def test_a_response_in_the_background_goes_on_with_a_model_that_writes() -> None:
    catalog = catalog_of(POOLER, SECOND)
    assert index_of(catalog.models[0], b'{"input": "a", "background": true}') == 1


async def test_any_name_is_the_first_model_that_does_it() -> None:
    """--any-model-name: the answer says the name again; a key for some models has these alone, and an adapter wins."""
    catalog = catalog_of({"any_model_name": True}, {"any_model_name": True} | POOLER)
    async with serving(model=0, catalog=catalog, any_model_name=True, accounts=OfFile(), api_keys=["other"]) as served:
        client = await served.client()
        client.send("POST", "/v1/chat/completions", {**CHAT, "model": "gpt-4o"}, X_Api_Key="other")
        job = await served.job()
        finish_all(job)
        assert (await client.answer()).json["model"] == "gpt-4o"
        client.send("POST", "/v1/embeddings", {"input": "hi", "model": "text-embedding-3"}, X_Api_Key="other")
        assert await served.engine.others[1].jobs.get()
        client.leave()
        for asked, key, status in (("gpt-4o", "theirs", 404), ("tiny", "theirs", 200), ("gpt-4o", "other", 200)):
            answer = await served.ask("POST", "/tokenize", {"prompt": "hi", "model": asked}, X_Api_Key=key)
            assert answer.status == status
        answer = await served.ask("POST", "/tokenize", {"prompt": "hi", "model": "a" * 257}, X_Api_Key="other")
        assert answer.status == 404


OF_ONE_MODEL: list[tuple[str, str, dict[str, Any] | None]] = [
    ("GET", "/v1/models/{}", None),
    ("POST", "/tokenize", {"prompt": "hi"}),
    ("POST", "/detokenize", {"tokens": [1]}),
    ("POST", "/apply-template", {"messages": CHAT["messages"]}),
    ("POST", "/v1/messages/count_tokens", {"messages": CHAT["messages"]}),
    ("POST", "/v1/responses/input_tokens", {"input": "hi"}),
    ("POST", "/v1/chat/completions/derender", {"generate_response": {"choices": [{"token_ids": [5]}]}}),
    ("POST", "/v1/completions/derender", {"generate_responses": [{"choices": [{"token_ids": [5]}]}]}),
    ("POST", "/api/show", {}),
    ("POST", "/api/chat", {"messages": []}),
]


@pytest.mark.parametrize(("method", "path", "body"), OF_ONE_MODEL, ids=[path for _, path, _ in OF_ONE_MODEL])
async def test_a_key_for_one_model_knows_of_no_other(method: str, path: str, body: dict[str, Any] | None) -> None:
    """What generates nothing heeds it, too."""
    async with serving(accounts=OfFile()) as served:
        for model, status in (("alias/name", 404), ("tiny", 200)):
            asked = None if body is None else body | {"model": model}
            answer = await served.ask(method, path.format(model), asked, X_Api_Key="theirs")
            assert answer.status == status, answer.body


@pytest.mark.parametrize("path", ["/v1/models", "/api/tags", "/api/ps"])
async def test_a_key_for_one_model_is_told_of_that_alone(path: str) -> None:
    async with serving(accounts=OfFile()) as served:
        body = (await served.ask("GET", path, X_Api_Key="theirs")).json
        assert [one.get("id") or one["name"] for one in body.get("data") or body["models"]] == ["tiny"]
