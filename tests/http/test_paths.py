"""Paths beside those of answers: models, tokens, how the server is; HEAD, and what is not there."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import pytest

from actorserve.actors.protocol.topics.prompts import ChatPrompt, TextPrompt, TokenPrompt
from tests.http.serving import HI, Served, serving


async def test_tokenize(served: Served) -> None:
    answer = await served.ask("POST", "/tokenize", {"prompt": "hi", "messages": None})
    assert answer.json == {"count": 2, "max_model_len": 64, "tokens": [1, 2], "token_strs": None}
    more = {"messages": HI, "prompt": None, "add_generation_prompt": False, "return_token_strs": True}
    assert (await served.ask("POST", "/tokenize", more)).json["token_strs"] == ["a", "b"]
    await served.ask("POST", "/tokenize", {"prompt": "", "add_special_tokens": False})
    text, chat, bare = served.engine.asked
    assert text == TextPrompt("hi") and bare == TextPrompt("", False)
    assert isinstance(chat, ChatPrompt) and not chat.add_generation_prompt


async def test_detokenize(served: Served) -> None:
    told = dict.fromkeys(("prompt", "content", "text"), "text")
    assert (await served.ask("POST", "/detokenize", {"tokens": [1, 2]})).json == told
    assert served.engine.asked == [[1, 2]]


async def test_special_tokens_are_left_out_of_a_text(served: Served) -> None:
    for path, left_out in (("/detokenize", False), ("/v1/detokenize", True)):
        for skip in (True, False):
            await served.ask("POST", path, {"tokens": [1], "skip_special_tokens": skip})
            assert served.engine.skipped is skip
        await served.ask("POST", path, {"tokens": [1]})
        assert served.engine.skipped is left_out


async def test_prompts_as_token_ids(served: Served) -> None:
    client = await served.client()
    client.send("POST", "/v1/completions", {"prompt": [[1], [2, 3]]})
    assert (await served.job()).prompts == [TokenPrompt([1]), TokenPrompt([2, 3])]


async def test_models(served: Served) -> None:
    body = (await served.ask("GET", "/v1/models")).json
    assert (body["object"], body["first_id"], body["last_id"], body["has_more"]) == (
        "list",
        "tiny",
        "alias/name",
        False,
    )
    tiny, alias = body["data"]
    assert (tiny["id"], tiny["object"], tiny["created"], tiny["root"]) == ("tiny", "model", 1_700_000_000, "tiny")
    assert (await served.ask("GET", "/v1/models/tiny")).json == tiny
    for path in ("alias/name", "alias%2Fname"):
        assert (await served.ask("GET", f"/v1/models/{path}")).json == alias
    assert tiny["meta"] == {"n_vocab": 1000, "n_ctx": 64}, "what is not known is left out"
    assert [(one["name"], one["model"], one["context_length"]) for one in body["models"]] == [
        ("tiny", "tiny", 64),
        ("alias/name", "alias/name", 64),
    ]
    assert body["models"][0]["capabilities"] == ["completion"] and tiny["endpoints"] == ["chat"]
    for endpoint, count in (("chat", 2), ("generate", 0), ("embed", 0)):
        found = (await served.ask("GET", f"/v1/models?endpoint={endpoint}")).json
        assert len(found["data"]) == len(found["models"]) == count, endpoint
        assert (found["first_id"], found["last_id"]) == (("tiny", "alias/name") if count else (None, None))
    answer = await served.ask("GET", "/v1/models/other")
    assert answer.status == 404 and answer.error["code"] == "model_not_found"


async def test_openais_paths_without_the_version(served: Served) -> None:
    """For clients whose base URL lacks it; /completions is llama.cpp's."""
    for path in ("/models", "/models/tiny", "/models/alias/name"):
        assert (await served.ask("GET", path)).json == (await served.ask("GET", f"/v1{path}")).json
    for path in ("/chat/completions", "/responses", "/responses/input_tokens", "/embeddings"):
        found, known = (
            await served.ask("POST", path, {"input": 5}),
            await served.ask("POST", f"/v1{path}", {"input": 5}),
        )
        assert found.status == known.status == 400 and found.error == known.error, path
    for path in ("/responses/resp_1", "/responses/resp_1/input_items"):
        assert (await served.ask("GET", path)).error["message"] == "Response with id 'resp_1' not found."


async def test_operations(served: Served) -> None:
    assert (await served.ask("GET", "/health")).json == {"status": "ok"}
    assert (await served.ask("GET", "/ping")).status == (await served.ask("POST", "/ping")).status == 200
    assert set((await served.ask("GET", "/version")).json) == {"version"}
    assert (await served.ask("GET", "/ready")).json == {"status": "ready"}
    served.engine.missing = ["worker-0: starting"]
    answer = await served.ask("GET", "/ready")
    assert answer.status == 503 and answer.json["waiting_for"] == ["worker-0: starting"]
    answer = await served.ask("GET", "/metrics")
    parts, content_type = served.engine.metrics()
    assert (answer.body, answer.headers["content-type"]) == (b"".join(parts), content_type)


async def test_others_have_their_turn_between_the_parts_of_a_scrape(served: Served) -> None:
    loop = asyncio.get_running_loop()
    seen: list[int] = []
    turns: list[int] = []

    def parts() -> Iterator[bytes]:
        for part in range(4):
            seen.append(len(turns))
            loop.call_soon(turns.append, part)
            yield b"%d\n" % part

    served.engine.metrics = lambda accept="": (parts(), "text/plain")  # type: ignore[method-assign]
    assert (await served.ask("GET", "/metrics")).body == b"0\n1\n2\n3\n"
    assert seen == [0, 1, 2, 3]


GETS = ["/health", "/ping", "/ready", "/version", "/load", "/metrics", "/v1/models", "/v1/models/tiny"]


POSTS = ["/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize"]


@pytest.mark.parametrize("path", GETS)
async def test_head_is_get_without_a_body(served: Served, path: str) -> None:
    client = await served.client()
    head = await client.ask("HEAD", path)
    answer = await client.ask("GET", path)  # nothing of a body is in its way
    assert head.status == answer.status == 200
    assert head.headers["content-length"] == answer.headers["content-length"]


@pytest.mark.parametrize("path", GETS + POSTS)
async def test_a_method_that_is_not_allowed(served: Served, path: str) -> None:
    client = await served.client()
    for method in ("PUT", "DELETE", "PATCH", "OPTIONS", "GET" if path in POSTS else "TRACE"):
        answer = await client.ask(method, path)
        allowed = set(answer.headers["allow"].split(","))
        assert answer.status == 405 and answer.error["message"] == f"Method Not Allowed: {method} {path}"
        assert answer.error["code"] == "method_not_supported"
        assert allowed >= ({"POST"} if path in POSTS else {"GET", "HEAD"}) and method not in allowed
    if path in POSTS:
        assert (await client.ask("HEAD", path)).status == 405


@pytest.mark.parametrize("path", ["/pag", "/v1", "/v1/", "/v1/embeddings/x/", "/health/x"])
async def test_a_route_that_is_none(served: Served, path: str) -> None:
    for method in ("GET", "POST"):
        answer = await served.ask(method, path)
        assert answer.status == 404 and answer.error["message"] == f"Not Found: {method} {path}"
        assert answer.error["code"] == "unknown_url"


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/v1/uploads", "POST /v1/files"),
        ("/v1/vector_stores/vs_1/files", "Nothing is searched"),
        ("/v1/moderations", "/classify"),
        ("/v1/audio/speech", "texts"),
        ("/v1/threads", "/v1/conversations"),
        ("/v1/skills", "No code is run here"),
        ("/v1/agents/sessions", "beside the server"),
        ("/v1/realtime/calls", "WebSocket"),
        ("/v1/chat/completions/chatcmpl-1", "POST /v1/responses"),
    ],
)
async def test_what_is_not_there_is_told_with_the_reason(served: Served, path: str, why: str) -> None:
    answer = await served.ask("POST", path, b"{}")
    told = answer.error["message"]
    assert answer.status == 404 and f"Not Found: POST {path}. " in told and why in told


@pytest.mark.parametrize(
    ("option", "paths"),
    [
        ("enable_page", ["/", "/docs", "/page/actors.css"]),
        ("enable_docs", ["/docs", "/openapi.json"]),
        ("enable_metrics", ["/metrics"]),
        ("enable_slots", ["/slots"]),
    ],
)
async def test_what_is_turned_off_says_by_which_option(option: str, paths: list[str]) -> None:
    async with serving(off=frozenset([option])) as served:
        for path in paths:
            answer = await served.ask("GET", path)
            assert answer.status == 404, path
            assert f"the server was started with --no-{option.replace('_', '-')}." in answer.body.decode()
        props = (await served.ask("GET", "/props")).json
        assert props["endpoint_slots"] is (option != "enable_slots")
        assert props["endpoint_metrics"] is (option != "enable_metrics")
        if option != "enable_docs":
            described = (await served.ask("GET", "/openapi.json")).json["paths"]
            assert not any("get" in described.get(path, {}) for path in paths)


async def test_slots_are_not_saved(served: Served) -> None:
    """As llama-server says it that was started without a folder for them."""
    for action in ("save", "restore", "erase"):
        answer = await served.ask("POST", f"/slots/0?action={action}", {"filename": "x"})
        error = answer.json["error"]
        assert (answer.status, error["code"], error["type"]) == (501, 501, "not_supported_error")
        assert "does not support slots action" in error["message"] and "--kv-offload" in error["message"]


@pytest.mark.parametrize(
    ("path", "why"),
    [
        ("/v1/chat/completions/control", "thinking_token_budget"),
        ("/tools", "--tool-server"),
        ("/cors-proxy?url=http://example.com", "nothing is fetched"),
    ],
)
async def test_what_llama_server_does_besides_is_told_with_the_reason(served: Served, path: str, why: str) -> None:
    answer = await served.ask("POST", path, b"{}")
    assert answer.status == 404 and why in str(answer.json["error"])


async def test_a_response_is_none_of_the_paths_beside_it(served: Served) -> None:
    for method, path, status in (
        ("GET", "/v1/responses/compact", 405),
        ("GET", "/v1/responses/resp_compact", 404),
        ("POST", "/v1/responses/resp_1", 405),
    ):
        answer = await served.ask(method, path, {"model": "tiny", "input": "hi"} if method == "POST" else None)
        assert answer.status == status and answer.error["message"]


@pytest.mark.parametrize(
    ("method", "path", "status"), [("POST", "/v1/completions", 401), ("POST", "/nowhere", 404), ("PUT", "/health", 405)]
)
async def test_an_error_that_needs_no_body_waits_for_a_short_one(method: str, path: str, status: int) -> None:
    """With its end read, what comes next on the connection is known from its first byte, and outlives its frontend."""
    async with serving(api_keys=["one"]) as served:
        client = await served.client()
        key = {} if status == 401 else {"X_Api_Key": "one"}
        client.send(method, path, b"0123", **key, Content_Length="8")
        told = asyncio.create_task(client.answer())
        await served.ask("GET", "/health")
        assert not told.done()
        client.raw(b"4567")
        answer = await told
        assert answer.status == status and answer.headers.get("connection") != "close"
        assert (await client.ask("GET", "/health")).status == 200
        client.send(method, path, b"0", **key, Content_Length=str(1 << 20))  # nobody waits for that
        answer = await client.answer()
        assert answer.status == status and answer.headers["connection"] == "close"
