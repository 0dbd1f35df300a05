"""What an operator tells the server to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actorserve.http.errors import ApiError, overloaded
from actorserve.http.openapi.document import document
from tests.http.serving import SETTINGS, Answer, Served, serving

RESET = "/reset_prefix_cache"


async def reset(served: Served, query: str = "", body: bytes = b"", **headers: str) -> Answer:
    return await served.ask("POST", RESET + query, body, X_Api_Key="master", **headers)


async def test_the_prefix_cache_is_reset() -> None:
    async with serving(admin_api_key="master") as served:
        for query, body, running in (
            ("", b"", False),
            ("?reset_running_requests=false&reset_external=0&other=x", b"{}", False),
            ("?reset_running_requests=True", b"", True),
            ("", b'{"reset_running_requests": true, "reset_connector": false}', True),
            ("?reset_external=true", b'{"reset_connector": true}', False),
        ):
            answer = await reset(served, query, body, **({"Content_Type": "application/json"} if body else {}))
            assert (answer.status, answer.json) == (200, {"status": "ok"})
            assert served.engine.resets.pop() is running and not served.engine.resets


async def test_a_body_that_is_none_may_say_what_it_likes_of_itself() -> None:
    """Some clients name a type with every POST."""
    async with serving(admin_api_key="master") as served:
        assert (await reset(served, Content_Type="application/octet-stream")).status == 200
        assert (await reset(served, body=b"{}", Content_Type="text/plain")).status == 415
        assert served.engine.resets == [False]


@pytest.mark.parametrize(
    ("query", "body", "field", "said"),
    [
        ("?reset_external=maybe", b"", "reset_external", "Expected `bool`"),
        ("?reset_running_requests=maybe", b"", "reset_running_requests", "Expected `bool`"),
        ("", b'{"reset_running_requests": 2}', "reset_running_requests", "Expected `bool`"),
        ("", b"{", None, "not valid JSON"),
    ],
)
async def test_what_cannot_be_is_a_400_and_resets_nothing(
    query: str, body: bytes, field: str | None, said: str
) -> None:
    async with serving(admin_api_key="master") as served:
        answer = await reset(served, query, body)
        assert answer.status == 400 and answer.error["param"] == field and said in answer.error["message"]
        assert served.engine.resets == []


async def test_it_is_posted_and_asks_for_the_admins_key() -> None:
    async with serving(api_keys=["one"], admin_api_key="master") as served:
        for key, status in (("one", 403), ("two", 401)):
            assert (await served.ask("POST", RESET, b"", X_Api_Key=key)).status == status
        answer = await served.ask("GET", RESET, X_Api_Key="master")
        assert answer.status == 405 and answer.headers["allow"] == "POST"
        assert served.engine.resets == []
        served.engine.refusal = overloaded("not within 30 s")
        answer = await reset(served)
        assert answer.status == 503 and answer.headers["retry-after"] == "1"


def test_it_is_described() -> None:
    path: Any = document(replace(SETTINGS, admin_api_key="k"))["paths"][RESET]
    assert set(path) == {"post"} and {"200", "400", "401", "403", "503"} <= set(path["post"]["responses"])
    parameters = {one["name"]: one["schema"] for one in path["post"]["parameters"]}
    assert set(parameters) == {"reset_running_requests", "reset_external", "reset_connector"}
    assert RESET not in document(SETTINGS)["paths"]


# --- engines -------------------------------------------------------------------------------------------------------


async def test_engines_are_added_and_taken_away() -> None:
    async with serving(admin_api_key="master") as served:
        answer = await served.ask("POST", "/scale", b'{"engines": 3}', X_Api_Key="master")
        assert (answer.status, answer.json) == (200, {"engines": 3, "max_engines": 3, "scaling": False})
        body = b'{"new_data_parallel_size": 2, "drain_timeout": 60}'
        answer = await served.ask("POST", "/scale_elastic_ep", body, X_Api_Key="master")
        assert (answer.status, answer.json) == (200, {"message": "Scaled to 2 data parallel engines"})
        served.engine.scaling.under_way = True
        answer = await served.ask("POST", "/is_scaling_elastic_ep", b"", X_Api_Key="master")
        assert answer.json == {"is_scaling_elastic_ep": True}
        answer = await served.ask("GET", "/scale", X_Api_Key="master")
        assert answer.json == {"engines": 2, "max_engines": 3, "scaling": True}
        served.engine.scaling.refusal = ApiError(409, "a restart is under way")
        assert (await served.ask("POST", "/scale", b'{"engines": 1}', X_Api_Key="master")).status == 409


@pytest.mark.parametrize(
    ("path", "body", "field", "said"),
    [
        ("/scale", b'{"engines": 0}', "engines", ">= 1"),
        ("/scale", b'{"engines": 4}', "engines", "between 1 and 3"),
        ("/scale", b'{"engines": "two"}', "engines", "Expected `int`"),
        ("/scale", b"{}", "engines", "missing"),
        ("/scale_elastic_ep", b'{"new_data_parallel_size": 4}', "new_data_parallel_size", "between 1 and 3"),
        ("/scale_elastic_ep", b'{"new_data_parallel_size": 2, "drain_timeout": 0}', "drain_timeout", ">= 1"),
    ],
)
async def test_what_is_no_number_of_engines_is_a_400(path: str, body: bytes, field: str, said: str) -> None:
    async with serving(admin_api_key="master") as served:
        answer = await served.ask("POST", path, body, X_Api_Key="master")
        assert answer.status == 400 and answer.error["param"] == field and said in answer.error["message"]
        assert served.engine.scaling.count == 1


async def test_a_server_with_room_for_one_says_by_which_option_there_would_be_more() -> None:
    async with serving(admin_api_key="master") as served:
        served.engine.scaling.most = 1
        answer = await served.ask("POST", "/scale", b'{"engines": 2}', X_Api_Key="master")
        assert answer.status == 400 and "--max-data-parallel-size" in answer.error["message"]
