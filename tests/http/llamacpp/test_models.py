"""What llama-server's router tells of models, and what of it is answered with why it is not here."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest

from actorserve.http.handlers.operators import models as handlers
from actorserve.http.ollama.about import NEVER
from tests.http.realtime.test_client_secrets import OfFile
from tests.http.serving import Client, Served, serving
from tests.http.test_models import SECOND, catalog_of

TWO: dict[str, Any] = {"model": 0, "models_max": 1}


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "PERIOD_S", 0.005)


def two() -> dict[str, Any]:
    return {**TWO, "catalog": catalog_of({"models_max": 1}, {**SECOND, "models_max": 1})}


async def watching(served: Served, **headers: str) -> Client:
    client = await served.client()
    client.send("GET", "/models/sse", **headers)
    head = await client.head()
    assert head.status == 200 and head.headers["content-type"].startswith("text/event-stream")
    return client


async def next_events(client: Client) -> list[Any]:
    return [json.loads(one.removeprefix("data: ")) for one in (await client.chunk()).decode().split("\n\n")[:-1]]


async def test_each_change_of_a_models_state_is_told_to_who_watches() -> None:
    async with serving(**two()) as served:
        told, watcher = served.engine.administration, await watching(served)
        told.unloaded.add(1)
        unloaded = {"model": "second", "event": "model_status", "data": {"status": "unloaded"}}
        assert await next_events(watcher) == [unloaded]
        told.load_problems[1] = "it is broken"
        (failed,) = await next_events(watcher)
        assert failed["data"] == {"status": "unloaded", "failed": True, "exit_code": 1, "message": "it is broken"}
        told.load_problems.clear()
        told.unloaded.discard(1)
        (loaded,) = await next_events(watcher)
        assert loaded["data"] == {"status": "loaded"}
        watcher.leave()


async def test_who_makes_room_is_told_before_who_takes_it() -> None:
    async with serving(**two()) as served:
        told = served.engine.administration
        told.unloaded.add(0)
        watcher = await watching(served)
        told.unloaded ^= {0, 1}
        states = [(one["model"], one["data"]["status"]) for one in await next_events(watcher)]
        assert states == [("second", "unloaded"), ("tiny", "loaded"), ("alias/name", "loaded")]
        watcher.leave()


async def test_all_who_watch_share_a_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "PERIOD_S", 600.0)
    async with serving(**two()) as served:
        look = Mock(side_effect=served.engine.administration.model_state)
        monkeypatch.setattr(served.engine.administration, "model_state", look)
        for watcher in [await watching(served) for _ in range(3)]:
            watcher.leave()
    assert [one.args for one in look.call_args_list] == [(0,), (1,)]


async def test_a_key_is_told_of_those_that_it_may_ask_for() -> None:
    async with serving(**two(), accounts=OfFile()) as served:
        watcher = await watching(served, X_Api_Key="theirs")
        served.engine.administration.unloaded |= {0, 1}
        assert [one["model"] for one in await next_events(watcher)] == ["tiny"]
        watcher.leave()


async def test_where_nothing_changes_a_comment_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "QUIET_S", 0.0)
    async with serving(**two()) as served:
        watcher = await watching(served)
        assert await watcher.chunk() == handlers.COMMENT
        watcher.leave()


async def test_so_many_may_watch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handlers, "MOST_WATCHERS", 1)
    async with serving(**two()) as served:
        watcher = await watching(served)
        refused = await served.ask("GET", "/models/sse")
        assert refused.status == 503 and refused.json["error"]["type"] == "unavailable_error"
        watcher.leave()


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("POST", "/models", {"model": "second"}, 400, "second is served already"),
        ("POST", "/models", {"model": "org/new:Q4"}, 400, "no model is downloaded while the server runs"),
        ("POST", "/models", {}, 400, "model"),
        ("DELETE", "/models?model=second", None, 400, "none is deleted by clients"),
        ("DELETE", "/models?model=other", None, 404, "other"),
        ("DELETE", "/models", None, 400, "model must be named in the query"),
    ],
)
async def test_models_are_those_that_the_server_was_started_with(
    method: str, path: str, body: Any, status: int, words: str
) -> None:
    async with serving(**two()) as served:
        answer = await served.ask(method, path, body)
        assert answer.status == status and words in answer.json["error"]["message"]
        assert answer.json["error"]["code"] == status, "as llama.cpp's clients read it"


@pytest.mark.parametrize("path", ["/models", "/v1/models"])
async def test_those_that_have_come_since_the_start_are_listed_where_the_query_asks_for_them(path: str) -> None:
    async with serving(**two()) as served:
        served.engine.administration.found_since = {"new": "it has come since"}

        async def ids(query: str) -> list[str]:
            return [card["id"] for card in (await served.ask("GET", path + query)).json["data"]]

        assert await ids("") == await ids("?reload=") == ["tiny", "alias/name", "second"]
        for value in ("1", "0", "maybe"):
            assert await ids(f"?reload={value}") == ["tiny", "alias/name", "second", "new"], "as llama-server has it"
        (*_, last) = (await served.ask("GET", path + "?reload=1")).json["data"]
        assert last["status"] == {"value": "unloaded", "message": "it has come since"}, "it has not failed"


async def test_props_tell_that_models_change_places() -> None:
    async with serving(**two()) as served:
        told = (await served.ask("GET", "/props")).json
        assert (told["role"], told["max_instances"], told["models_autoload"]) == ("router", 1, True)
        assert "role" not in (await served.ask("GET", "/props?model=second")).json
    async with serving() as served:
        assert "role" not in (await served.ask("GET", "/props")).json


async def test_ollamas_clients_are_told_that_a_model_stops_which_makes_room_for_another() -> None:
    async with serving(**two()) as served:
        served.engine.administration.leaving.add(1)
        until = {one["name"]: one["expires_at"] for one in (await served.ask("GET", "/api/ps")).json["models"]}
        assert until["tiny"] == NEVER != until["second"]
