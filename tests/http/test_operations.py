"""What an operator tells the server to do."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from actorserve.http.errors import overloaded
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
        ):
            answer = await reset(served, query, body, **({"Content_Type": "application/json"} if body else {}))
            assert (answer.status, answer.json) == (200, {"status": "ok"})
            assert served.engine.resets.pop() is running and not served.engine.resets


async def test_a_body_that_is_none_may_say_what_it_likes_of_itself() -> None:
    """Some clients name a type with every POST."""
    async with serving(admin_api_key="master") as served:
        assert (await reset(served, Content_Type="application/octet-stream")).status == 200
        assert (await reset(served, body=b"{}", Content_Type="application/octet-stream")).status == 415
        assert served.engine.resets == [False]


@pytest.mark.parametrize(
    ("query", "body", "field", "said"),
    [
        ("?reset_external=true", b"", "reset_external", "is not supported"),
        ("?reset_connector=1", b"", "reset_connector", "is not supported"),
        ("", b'{"reset_external": true}', "reset_external", "is not supported"),
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
    assert parameters["reset_external"]["const"] is False, "what it may not be"
    assert RESET not in document(SETTINGS)["paths"]
