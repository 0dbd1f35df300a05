"""API keys: who is let in, and what is open to all."""

from __future__ import annotations

from tests.http.serving import Served, serving

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
