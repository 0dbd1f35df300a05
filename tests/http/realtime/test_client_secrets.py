"""Client secrets: who gets one, what it opens, how its session begins, and what is none."""

from __future__ import annotations

import base64
import contextlib
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import aiohttp
import pytest

from actorserve.actors.accounts.account import Account, digest_of
from actorserve.http.accounts import Accounts
from actorserve.http.errors import ApiError
from actorserve.http.realtime import client_secrets
from actorserve.http.realtime.client_secrets import MOST_SESSION, read_secret, write_secret
from actorserve.http.realtime.fields import SessionFields
from actorserve.http.settings import Catalog
from tests.http.serving import PATIENCE_S, SETTINGS, Served, serving

PATH = "/v1/realtime/client_secrets"
BRIEF = {"type": "realtime", "instructions": "Be brief.", "output_modalities": ["text"]}


class OfFile(Accounts):
    """One key."""

    enabled = True

    def __init__(self) -> None:
        self.account: Account | None = Account(0, "clerk", digest_of(b"theirs"), models=["tiny"])

    def find(self, key: bytes) -> Account | None:
        return self.account if self.account is not None and self.account.digest == digest_of(key) else None

    def named(self, name: str) -> Account | None:
        return self.account if self.account is not None and self.account.name == name else None


async def connect(served: Served, key: str, query: str = "", browser: bool = False) -> dict[str, Any] | int:
    """The first event, or the status of a refusal."""
    how: dict[str, Any] = {"headers": {"Authorization": f"Bearer {key}"}}
    if browser:
        how = {"protocols": ["realtime", f"openai-insecure-api-key.{key}"]}
    async with aiohttp.ClientSession(f"http://127.0.0.1:{served.port}") as session:
        try:
            async with session.ws_connect("/v1/realtime" + query, **how) as socket:
                return dict(await socket.receive_json(timeout=PATIENCE_S))
        except aiohttp.WSServerHandshakeError as error:
            return error.status


async def made(served: Served, key: str = "one", **body: Any) -> dict[str, Any]:
    answer = await served.ask("POST", PATH, body, Authorization=f"Bearer {key}")
    assert answer.status == 200, answer.error
    return dict(answer.json)


async def test_a_session_begins_as_its_secret_says() -> None:
    async with serving(api_keys=["zero", "one"]) as served:
        now = time.time()
        told = await made(served, session=BRIEF, expires_after={"anchor": "created_at", "seconds": 60})
        assert told["value"].startswith("ek_") and now + 58 < told["expires_at"] < now + 90
        assert told["session"]["instructions"] == "Be brief." and told["session"]["model"] == "tiny"
        for browser in (False, True):
            created = await connect(served, told["value"], "?model=tiny", browser)
            assert isinstance(created, dict) and created["type"] == "session.created"
            assert created["session"]["instructions"] == "Be brief."
        assert await connect(served, told["value"], "?model=other") == 400
        assert isinstance(await connect(served, "one"), dict) and await connect(served, "two") == 401


async def test_a_secret_names_its_model_among_several() -> None:
    catalog = Catalog()
    catalog.models += [replace(SETTINGS, model=at, served=[name], catalog=catalog) for at, name in enumerate("ab")]
    async with serving(catalog=catalog, served=["a"]) as served:
        key = (await made(served, session={"model": "b"}))["value"]
        created = await connect(served, key)
        assert isinstance(created, dict) and created["session"]["model"] == "b"


async def test_a_key_may_begin_as_secrets_do() -> None:
    async with serving(api_keys=["ek_own"]) as served:
        assert isinstance(await connect(served, "ek_own"), dict) and await connect(served, "ek_other") == 401


async def test_it_opens_nothing_else() -> None:
    async with serving(api_keys=["one"]) as served:
        key = (await made(served))["value"]
        for path in (PATH, "/v1/chat/completions"):
            assert (await served.ask("POST", path, {}, Authorization=f"Bearer {key}")).status == 401
        assert (await served.ask("POST", PATH, {})).status == 401, "it takes a key to have one"


async def test_the_older_form() -> None:
    async with serving(api_keys=["one"]) as served:
        body = {"model": "tiny", "modalities": ["text"], "instructions": "Be brief.", "turn_detection": None}
        answer = await served.ask("POST", "/v1/realtime/sessions", body, Authorization="Bearer one")
        assert answer.status == 200 and answer.json["id"].startswith("sess_")
        created = await connect(served, answer.json["client_secret"]["value"])
        assert isinstance(created, dict) and created["session"]["instructions"] == "Be brief."


async def test_without_keys_there_are_secrets_too() -> None:
    async with serving() as served:
        key = (await made(served, session=BRIEF))["value"]
        assert isinstance(await connect(served, key), dict)
        assert await connect(served, key[:-2] + ("AA" if key[-2:] != "AA" else "BB")) == 401


async def test_a_key_of_the_file_and_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """With the key all that was made of it ends; another key of the same name is another."""
    accounts = OfFile()
    async with serving(accounts=accounts) as served:
        key = (await made(served, "theirs", session=BRIEF))["value"]
        assert isinstance(await connect(served, key), dict)
        assert accounts.account is not None
        for other in (None, Account(0, "clerk", digest_of(b"another"))):
            accounts.account = other
            assert await connect(served, key) == 401


async def test_it_ends_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(api_keys=["one"]) as served:
        for late, status in ((-1, 401), (60, None)):
            until = int(time.time()) + late
            key = write_secret(until, "", "tiny", SessionFields(), digest_of(b"one"))
            found = await connect(served, key)
            assert found == status if status else isinstance(found, dict)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"session": {"tracing": "x"}}, "session.tracing"),
        ({"session": {"voice": "x"}}, "session.voice"),
        ({"session": {"type": "transcription"}}, "session.type"),
        ({"session": {"instructions": "x" * MOST_SESSION}}, "session"),
        ({"session": {"audio": {"output": {"voice": "x"}}}}, "session.audio.output"),
        ({"expires_after": {"seconds": 5}}, "expires_after.seconds"),
        ({"expires_after": {"anchor": "now"}}, "expires_after.anchor"),
        ({"sesion": {}}, "sesion"),
    ],
)
async def test_what_cannot_be_of_a_session_is_told_at_once(body: dict[str, Any], param: str) -> None:
    async with serving() as served:
        answer = await served.ask("POST", PATH, body)
        assert (answer.status, answer.error["param"]) == (400, param), answer.error
        other = await served.ask("POST", PATH, {"session": {"model": "other"}})
        assert other.status == 404


@pytest.mark.parametrize(
    "spoilt",
    [
        lambda key: key[:-1],
        lambda key: "ek_",
        lambda key: "ek_é",
        lambda key: key + "AAAA",
        lambda key: "ek_" + "A" * 99,
        lambda key: "ek_" + base64.urlsafe_b64encode(bytes(32) + b"\x94\x09\xa1\xff\xa0\xc4\x00").decode().rstrip("="),
    ],
)
def test_what_is_no_secret(spoilt: Callable[[str], str]) -> None:
    digest = digest_of(b"one")
    key = write_secret(9, "me", "tiny", SessionFields(instructions="Be brief."), digest)
    found = read_secret(key.encode())
    assert found.is_signed_by(digest) and not found.is_signed_by(digest_of(b"two"))
    assert (found.grant.until, found.grant.owner) == (9, "me")
    other = spoilt(key).encode()
    with contextlib.suppress(ApiError):  # as what cannot be read is refused
        assert not read_secret(other).is_signed_by(digest)


def test_a_guess_costs_something() -> None:
    """A secret is in the hands of whoever has the page, and what signs it follows from a key."""
    assert client_secrets.ROUNDS >= 50_000
