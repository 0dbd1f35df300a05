"""Paths as careless clients put them together, and the lengths of heads."""

from __future__ import annotations

import pytest

from tests.http.fakes import finish_all
from tests.http.serving import HI, LONGEST_LINE, Served, serving

BOM = b"\xef\xbb\xbf"


@pytest.mark.parametrize(
    ("asked", "place"),
    [
        ("/v1/models/", "/v1/models"),
        ("//v1//models", "/v1/models"),
        ("/v1//models/?a=%2F%2f&b=/c//d/", "/v1/models?a=%2F%2f&b=/c//d/"),
        ("/health/?", "/health"),
        ("//v1/models/tiny/", "/v1/models/tiny"),
        ("//v1/models/t%c3%a9:y?%0d%0aX:y", "/v1/models/t%C3%A9:y?%0d%0aX:y"),
        ("//page/icon.svg", "/page/icon.svg"),
        ("http://there//health", "/health"),
    ],
)
async def test_slashes_too_many(served: Served, asked: str, place: str) -> None:
    answer = await served.ask("GET", asked)
    assert answer.status == 307 and answer.body == b""
    assert answer.headers["location"] == place


async def test_a_redirected_request_is_sent_again_with_its_body(served: Served) -> None:
    client = await served.client()
    answer = await client.ask("POST", "/v1//chat/completions/", {"messages": HI}, Origin="https://there")
    assert answer.status == 307 and answer.headers["access-control-allow-origin"] == "*"
    client.send("POST", answer.headers["location"], {"messages": HI})
    finish_all(await served.job())
    assert (await client.answer()).status == 200


@pytest.mark.parametrize("asked", ["/nowhere/", "//nowhere", "//there.example/", "/v1//", "//", "/v1/chat//", "/%2F"])
async def test_what_leads_nowhere_stays_unknown(served: Served, asked: str) -> None:
    answer = await served.ask("GET", asked)
    assert answer.status == 404 and "location" not in answer.headers


async def test_another_method_is_not_redirected(served: Served) -> None:
    assert (await served.ask("GET", "/v1/completions/")).status == 404
    assert (await served.ask("GET", "/v1/completions")).status == 405


async def test_a_redirection_tells_nothing_to_those_without_a_key() -> None:
    async with serving(api_keys=["one"]) as served:
        for path in ("/v1/models/", "//health", "//"):
            assert (await served.ask("GET", path)).status == 401
        assert (await served.ask("GET", "/v1/models/", X_Api_Key="one")).status == 307
        assert (await served.ask("POST", "/sleep/", X_Api_Key="one")).status == 404


# --- what comes before a text ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/completions", "/tokenize"])
async def test_a_mark_of_utf_8_is_passed_over(served: Served, path: str) -> None:
    client = await served.client()
    client.send("POST", path, BOM + b'{"prompt": "hi"}', Content_Type="application/json; charset=utf-8")
    if path != "/tokenize":
        finish_all(await served.job())
    assert (await client.answer()).status == 200


async def test_one_mark_is_enough(served: Served) -> None:
    assert (await served.ask("POST", "/tokenize", BOM + BOM + b'{"prompt": "hi"}')).status == 400


# --- heads -----------------------------------------------------------------------------------------------------------


async def test_long_lines_of_a_head() -> None:
    key = "k" * (LONGEST_LINE - len("Bearer "))
    async with serving(api_keys=[key]) as served:
        answer = await served.ask("GET", "/v1/models", Authorization=f"Bearer {key}", Cookie="c" * LONGEST_LINE)
        assert answer.status == 200


async def test_a_line_that_is_too_long_is_not_said_again(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("DEBUG"):
        answer = await served.ask("GET", "/health", Authorization="Bearer " + "secret" * 10_000)
    assert answer.status == 400
    assert answer.error["message"] == "The request is malformed: a line of its head is longer than 32768 bytes."
    assert "secret" not in caplog.text


async def test_the_reason_is_one_sentence(served: Served) -> None:
    client = await served.client()
    client.raw(b"GET /health HTTP/1.1\r\n\r\n")
    assert (await client.answer()).error["message"] == "The request is malformed: Missing 'Host' header in request."


# --- below a path of a proxy's ---------------------------------------------------------------------------------------


async def test_the_root_is_cut_off_before_anything_looks_at_a_path() -> None:
    async with serving(root_path="/llm/one", api_keys=["k"], admin_api_key="master") as served:
        for root in ("/llm/one", ""):
            assert (await served.ask("GET", f"{root}/health")).status == 200
            assert (await served.ask("GET", f"{root}/v1/models")).status == 401
            assert (await served.ask("GET", f"{root}/v1/models?a=b", X_Api_Key="k")).status == 200
            assert (await served.ask("POST", f"{root}/reset_prefix_cache", X_Api_Key="k")).status == 403
            page = await served.ask("GET", root or "/")
            assert page.status == 200 and page.headers["content-type"].startswith("text/html")
        assert (await served.ask("GET", "/llm/one/llm/one/health", X_Api_Key="k")).status == 404
        assert (await served.ask("GET", "/llm/onehealth", X_Api_Key="k")).status == 404
        again = await served.ask("GET", "/llm/one//v1/models/", X_Api_Key="k")
        assert again.headers["location"] == "/llm/one/v1/models"
        document = await served.ask("GET", "/llm/one/openapi.json", X_Api_Key="k")
        assert document.json["servers"] == [{"url": "/llm/one"}] and "/v1/models" in document.json["paths"]


async def test_errors_below_it_are_those_of_their_api() -> None:
    async with serving(root_path="/x") as served:
        assert (await served.ask("POST", "/x/api/chat", {"model": "no", "messages": HI})).json.keys() == {"error"}
        assert (await served.ask("POST", "/x/v1/messages", {})).json["type"] == "error"
