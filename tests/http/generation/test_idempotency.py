"""API keys: who is let in, and what is open to all; where keys come from, and that nobody sees them."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import httpx2 as httpx
import msgspec
import psutil
import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.request import Generation
from tests.http.fakes import finish_all
from tests.http.serving import HI, Served, serving
from tests.support.server import Server

BAD_KEYS: list[dict[str, str]] = [
    {},
    {"Authorization": "Bearer"},
    {"Authorization": "Bearer "},
    {"Authorization": "Bearer wrong"},
    {"Authorization": "Bearer one two"},
    {"Authorization": "one"},
    {"Authorization": "Basic one"},
    {"Authorization": "Bearer \xff"},
    {"X_Api_Key": "wrong"},
    {"X_Api_Key": ""},
]
GOOD_KEYS: list[dict[str, str]] = [
    {"Authorization": "Bearer one"},
    {"Authorization": "bearer  two "},
    {"X_Api_Key": "two"},
    {"Authorization": "Bearer schl\u00fcssel".encode().decode("latin-1")},
]


async def test_keys() -> None:
    async with serving(api_keys=["one", "two", "schl\u00fcssel"]) as served:
        for headers in BAD_KEYS:
            for method, path in (("GET", "/v1/models"), ("POST", "/v1/completions"), ("GET", "/nowhere")):
                answer = await served.ask(method, path, **headers)
                assert answer.status == 401 and answer.headers["www-authenticate"] == "Bearer", headers
                assert answer.error["code"] == "invalid_api_key"
                assert answer.error["type"] == "authentication_error"
        for headers in GOOD_KEYS:
            assert (await served.ask("GET", "/v1/models", **headers)).status == 200, headers
            assert (await served.ask("GET", "/nowhere", **headers)).status == 404
        for path in ("/health", "/ready", "/ping", "/version", "/metrics"):
            assert (await served.ask("GET", path)).status == 200
        assert (await served.ask("GET", "/load")).status == 401


async def test_without_keys_any_key_will_do(served: Served) -> None:
    for headers in (*BAD_KEYS, *GOOD_KEYS):
        assert (await served.ask("GET", "/v1/models", **headers)).status == 200


@pytest.mark.parametrize("per_key", [False, True])
async def test_prefixes_are_shared_by_all_or_by_those_of_a_key(per_key: bool) -> None:
    """Two salts are the same where two requests may share what was computed: renderer and scheduler are told alike."""
    bodies: dict[str, dict[str, Any]] = {
        "/v1/chat/completions": {"messages": HI},
        "/v1/completions": {"prompt": "hi"},
        "/inference/v1/generate": {"token_ids": [1]},
        "/v1/messages": {"messages": HI, "max_tokens": 5},
        "/v1/responses": {"input": "hi"},
    }
    async with serving(api_keys=["one", "two"], prefix_cache_per_client=per_key) as served:

        async def salt(path: str, key: str, **more: str) -> str:
            client = await served.client()
            client.send("POST", path, {**bodies[path], **more}, X_Api_Key=key)
            job = await served.job()
            finish_all(job)
            await client.answer()
            given: str = msgspec.msgpack.decode(job.params[0], type=Generation).cache_salt
            assert job.rendering["cache_salt"] == given
            return given

        for path in bodies:
            assert (await salt(path, "one") != await salt(path, "two")) is per_key
            assert await salt(path, "one") == await salt("/v1/completions", "one")
            mine = await salt(path, "one", cache_salt="a")
            assert mine != await salt(path, "one") and mine != await salt(path, "one", cache_salt="b")
            assert (mine != await salt(path, "two", cache_salt="a")) is per_key


def test_prefixes_by_key_need_keys() -> None:
    with pytest.raises(ConfigError, match=r"^--prefix-cache-per-client: there are no keys"):
        make_config({"prefix_cache_per_client": True})
    assert make_config({"prefix_cache_per_client": True, "api_key": ["a"]}).prefix_cache_per_client


BASIC = "Basic dXNlcjpwYXNz"


async def test_a_repetition_is_the_key_s_however_it_is_sent() -> None:
    """What else stands in Authorization, for somebody before this server, hides no key."""
    first = {"X_Api_Key": "one", "Authorization": BASIC}
    same: list[dict[str, str]] = [{"X_Api_Key": "one"}, {"Authorization": "Bearer one"}, first]
    others: list[dict[str, str]] = [{"X_Api_Key": "two", "Authorization": BASIC}, {"Authorization": "Bearer two"}]
    async with serving(api_keys=["one", "two"]) as served:
        assert await _makes_a_new_answer(served, first)
        assert not any([await _makes_a_new_answer(served, headers) for headers in same])
        assert [await _makes_a_new_answer(served, headers) for headers in others] == [True, False]


async def test_without_keys_repetitions_are_told_apart_by_all_that_is_sent(served: Served) -> None:
    sent: list[dict[str, str]] = [
        {},
        {"Authorization": BASIC},
        {"Authorization": BASIC, "X_Api_Key": "two"},
        {"X_Api_Key": "two"},
    ]
    for headers in sent:
        assert await _makes_a_new_answer(served, headers) and not await _makes_a_new_answer(served, headers)


async def _makes_a_new_answer(served: Served, headers: dict[str, str]) -> bool:
    """To a request with an Idempotency-Key: or is it given an earlier one's?"""
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": "hi"}, Idempotency_Key="again", **headers)
    finish_all(await served.job())
    answer = await client.answer()
    assert answer.status == 200
    return "idempotent-replayed" not in answer.headers


# --- where they come from ------------------------------------------------------------------------------------------


def test_keys_of_a_file_are_added(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# those of the staff\n\n  one \r\n\t\ntwo # 2\n#three\nschl\u00fcssel", encoding="utf-8")
    config = make_config({"api_key": ["zero"], "api_key_file": str(file)})
    assert config.api_key == ["zero", "one", "two # 2", "schl\u00fcssel"]


def test_a_file_that_will_not_do_is_refused(tmp_path: Path) -> None:
    """A server that asks for no key because its file is empty would be open to all."""
    empty, binary = tmp_path / "empty", tmp_path / "binary"
    empty.write_text("\n# none\n")
    binary.write_bytes(b"\xff\xfe")
    cases = {tmp_path / "none": "No such file", tmp_path: "Is a directory", binary: "it is not UTF-8"}
    for path, reason in cases.items():
        with pytest.raises(ConfigError, match=f"^--api-key-file: {path} cannot be read: {reason}"):
            make_config({"api_key_file": str(path)})
    with pytest.raises(ConfigError, match=f"^--api-key-file: {empty} holds no key$"):
        make_config({"api_key_file": str(empty)})


@pytest.mark.parametrize("key", ["", " ", " hush", "hush ", "hu\nsh", "hu\x00sh"])
def test_a_key_that_is_none_is_refused_and_not_named(key: str) -> None:
    for option, value in (("api_key", ["one", key]), ("admin_api_key", key)):
        with pytest.raises(ConfigError, match=f"^--{option.replace('_', '-')}: a key must not be empty") as refused:
            make_config({option: value})
        assert "hu" not in str(refused.value) and "one," not in str(refused.value)


def test_the_key_of_administration_is_no_client_s(tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("hush")
    for given in ({"api_key": ["one", "hush"]}, {"api_key_file": str(tmp_path / "keys")}):
        with pytest.raises(ConfigError, match=r"^--admin-api-key: ") as refused:
            make_config({**given, "admin_api_key": "hush"})
        assert "hush" not in str(refused.value)


@pytest.mark.parametrize("origin", ["example.com", "https://a.com/", "https://a.com/x", "https://A.com", "", "* "])
def test_an_origin_that_no_browser_sends_is_refused(origin: str) -> None:
    with pytest.raises(ConfigError, match=r"^--allowed-origins: "):
        make_config({"allowed_origins": ["https://a.com:8080", origin]})
    assert make_config({"allowed_origins": ["*", "null", "http://localhost:3000", "http://[::1]:3000"]})


def test_lists_may_be_written_as_json() -> None:
    config = make_config({"allowed_origins": ['["https://a.com", "null"]'], "allowed_methods": ['["*"]']})
    assert config.allowed_origins == ["https://a.com", "null"] and config.allowed_methods == ["*"]
    assert make_config({"allowed_headers": ["a", "b"]}).allowed_headers == ["a", "b"]
    for text in ("[a]", "[1]", '["*"'):
        with pytest.raises(ConfigError, match=r"^--allowed-headers: "):
            make_config({"allowed_headers": [text]})


def status(url: str, key: str) -> int:
    answer = httpx.get(url, headers={"Authorization": f"Bearer {key}"}, timeout=30)
    assert answer.status_code == 200 or key not in json.dumps(dict(answer.headers)) + answer.text
    return answer.status_code


def test_keys_are_not_seen(tmp_path: Path) -> None:
    """Neither by `ps` nor in the log, where it says everything."""
    keys = ["hush-option", "hush-file", "hush-admin", "hush-wrong"]
    (tmp_path / "keys").write_text(keys[1])
    options = ("--api-key", keys[0], "--api-key-file", str(tmp_path / "keys"), "--admin-api-key", keys[2])
    with Server(*options, "--worker", "scripted", "--log-level", "debug") as server:
        for path, expected in (("/v1/models", [200, 200, 401, 401]), ("/is_paused", [403, 403, 200, 401])):
            assert [status(server.base_url + path, key) for key in keys] == expected
        lines = []
        for process in server.processes():
            with contextlib.suppress(psutil.NoSuchProcess):
                lines.append(" ".join(process.cmdline()))
        assert "actorserve: supervisor" in [line.strip() for line in lines] and len(lines) >= 6
        assert server.stop() == 0
        assert not [line for line in (*lines, server.read_all()) if "hush" in line]
