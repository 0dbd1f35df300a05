"""The document of /openapi.json against the structs, the routes, and what the server checks."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import jsonschema
import msgspec
import pytest
from aiohttp import ClientSession, web

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.protocol.sampling.fields import ranges_of
from actorserve.http.accounts import Accounts
from actorserve.http.app import make_app
from actorserve.http.errors import ApiError
from actorserve.http.generation.fields.decoding import decode, decode_query
from actorserve.http.generation.fields.ranges import (
    MAX_BAD_WORD,
    MAX_BAD_WORDS,
    MAX_BREAKER,
    MAX_BREAKERS,
    MAX_IDS,
    MAX_SALT,
)
from actorserve.http.generation.fields.sampling import check_fields
from actorserve.http.generation.prompts import check_messages
from actorserve.http.openai.schemas import ChatRequest, CompletionRequest
from actorserve.http.openapi import answers
from actorserve.http.openapi.document import document
from actorserve.http.openapi.operations import Health
from actorserve.http.route import Route
from actorserve.http.routes import PROBE_PATHS, ROUTES
from actorserve.http.settings import FileSettings
from actorserve.http.speech.schemas import SpeechRequest
from tests.http import fakes, serving

SETTINGS = replace(serving.SETTINGS, reasoning_parser="qwen3", files=FileSettings("folder", 1))
DOCUMENT = document(SETTINGS)
SCHEMAS = DOCUMENT["components"]["schemas"]
HI = [{"role": "user", "content": "hi"}]
CALL = {"type": "function", "function": {"name": "a.b-c_d:e"}}


def validator(name: str) -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator({**SCHEMAS[name], "components": {"schemas": SCHEMAS}})


def references(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("$ref"), str):
            yield value["$ref"]
        for part in value.values():
            yield from references(part)
    elif isinstance(value, list):
        for part in value:
            yield from references(part)


def test_it_is_whole() -> None:
    """Every schema is one, and every reference leads somewhere."""
    assert DOCUMENT["openapi"].startswith("3.1.") and json.loads(json.dumps(DOCUMENT)) == DOCUMENT
    for schema in SCHEMAS.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    assert all(name.isidentifier() for name in SCHEMAS), "two structs have one name"
    wanted = set(references(DOCUMENT))
    assert wanted <= {f"#/components/schemas/{name}" for name in SCHEMAS} and wanted


def test_what_is_answered_has_lists_of_one_kind() -> None:
    """Some validators of answers read prefixItems as older drafts have it, and fail."""
    said = [schema for name, schema in SCHEMAS.items() if hasattr(answers, name)]
    assert said and "prefixItems" not in json.dumps(said)


def test_every_frontend_writes_the_same() -> None:
    """Schemas stand in the table's order, and not in one that each process has for itself."""
    there = [route for route in ROUTES if not (route.pools or route.admin or route.hears)]
    wanted = list(dict.fromkeys(route.request.__name__ for route in there if route.request is not None))
    assert [name for name in SCHEMAS if name in wanted] == wanted


def test_all_of_the_api_is_in_it() -> None:
    """The page is not, nor is administration without its option, nor what is not built yet."""
    found = {(method, path) for path, methods in DOCUMENT["paths"].items() for method in methods}
    rare = [route for route in ROUTES if route.pools or route.hears or route.of_keys]
    apart = [*rare, *(route for route in ROUTES if route.page or route.admin or route.refuses)]
    listed = [route for route in ROUTES if route.handler and route.listed and route not in apart]
    assert found == {(route.method, route.template) for route in listed}
    assert {("post", "/v1/chat/completions"), ("get", "/v1/models/{model}"), ("delete", "/v1/responses/{id}")} < found
    assert not {"/docs", "/sleep", "/v1/usage"} & set(DOCUMENT["paths"])
    accounts = Accounts()
    accounts.enabled = True
    assert "/v1/usage" in document(replace(SETTINGS, accounts=accounts))["paths"]
    without = document(replace(SETTINGS, files=None))["paths"]
    assert not {"/v1/files", "/v1/batches/{id}"} & set(without) and "/v1/batches/{id}" in DOCUMENT["paths"]
    upload = DOCUMENT["paths"]["/v1/files"]["post"]["requestBody"]["content"]
    assert upload == {"multipart/form-data": {"schema": {"$ref": "#/components/schemas/FileForm"}}}


def test_a_model_that_listens_has_other_paths() -> None:
    marks = {"languages": {}, "tasks": {}, "end": 1, "no_timestamps": 2, "mels": 80, "frames": 3000}
    speech = SpeechSpec(**marks)  # type: ignore[arg-type]
    encoder = EncoderSpec(longest=1500, decoder_longest=448, start=[3], filler=0, speech=speech)
    whole = document(replace(SETTINGS, encoder=encoder))
    heard = {route.template for route in ROUTES if route.hears}
    assert heard <= whole["paths"].keys() and not heard & DOCUMENT["paths"].keys()
    assert not {route.template for route in ROUTES if route.generates} & whole["paths"].keys()
    for path in heard:
        assert list(whole["paths"][path]["post"]["requestBody"]["content"]) == ["multipart/form-data"]
    jsonschema.Draft202012Validator.check_schema(whole["components"]["schemas"]["SpeechRequest"])


def test_a_model_that_pools_has_other_paths() -> None:
    spec = PoolingSpec(tasks=["embed"], base="", methods=["mean"], normalize=True, hidden=8, width=8)
    paths = document(replace(SETTINGS, pooling=spec))["paths"]
    pooling = {route.template for route in ROUTES if route.pools and route.listed}
    assert {"/v1/embeddings", "/score", "/v2/rerank", "/classify", "/pooling"} < pooling <= paths.keys()
    assert (
        not {route.template for route in ROUTES if route.generates} & paths.keys()
        and not pooling & DOCUMENT["paths"].keys()
    )


def test_keys() -> None:
    """Where keys are set, every path but the open ones asks for one, this document's included."""
    guarded = document(replace(SETTINGS, api_keys=["k"]))
    for path, methods in guarded["paths"].items():
        for operation in methods.values():
            assert ("401" in operation["responses"]) == (path not in PROBE_PATHS) == ("security" in operation)
    assert not any("security" in operation for methods in DOCUMENT["paths"].values() for operation in methods.values())


@pytest.mark.parametrize("name", sorted({*ranges_of(CompletionRequest), *ranges_of(ChatRequest)} - {"logprobs"}))
def test_ranges_are_those_that_are_checked(name: str) -> None:
    """Both ends of a range are taken and what lies beyond them is not, by the schema and by the server."""
    kind = "ChatRequest" if name not in SCHEMAS["CompletionRequest"]["properties"] else "CompletionRequest"
    schema = SCHEMAS[kind]["properties"][name]
    (bound,) = (branch for branch in schema["anyOf"] if branch["type"] in ("integer", "number"))
    ends = {bound[end]: step for end, step in (("minimum", -1), ("maximum", 1)) if end in bound}
    assert ends and (len(ends) == 2 or "exclusiveMinimum" in bound)
    for value, step in ends.items():
        assert allowed(kind, name, value) and not allowed(kind, name, value + step)
    if "exclusiveMinimum" in bound:
        assert not allowed(kind, name, 0) and allowed(kind, name, 1e-9)


@pytest.mark.parametrize(
    ("name", "most", "more"),
    [
        ("bad_words", ["a" * MAX_BAD_WORD] * MAX_BAD_WORDS, (["a" * (MAX_BAD_WORD + 1)], [""])),
        ("dry_sequence_breakers", ["a" * MAX_BREAKER] * MAX_BREAKERS, (["a" * (MAX_BREAKER + 1)], [""])),
        ("dry_sequence_breakers", [], (["a"] * (MAX_BREAKERS + 1),)),
        ("cache_salt", "a\n" * (MAX_SALT // 2), ("a" * (MAX_SALT + 1), "", "\0", "a\0")),
        ("stop_token_ids", [0] * MAX_IDS["stop_token_ids"], ([0] * (MAX_IDS["stop_token_ids"] + 1), [-1])),
    ],
)
def test_lengths_are_those_that_are_checked(name: str, most: object, more: tuple[object, ...]) -> None:
    for value in (most, *more):
        body = {"prompt": "a", name: value}
        assert validator("CompletionRequest").is_valid(body) == answered("CompletionRequest", body) == (value is most)


def allowed(kind: str, name: str, value: float) -> bool:
    """By both."""
    body: dict[str, Any] = {name: value}
    body |= {"prompt": "a", "echo": True} if kind == "CompletionRequest" else {"messages": HI, "logprobs": True}
    said, done = validator(kind).is_valid(body), answered(kind, body)
    assert said == done, (kind, body)
    return done


def answered(kind: str, body: dict[str, Any]) -> bool:
    struct = CompletionRequest if kind == "CompletionRequest" else ChatRequest
    status = 200
    try:
        check_fields(decode(struct, json.dumps(body).encode()), SETTINGS.vocab_size, None, SETTINGS.most_logprobs)
    except ApiError as error:
        status = error.status
    assert status in (200, 400)
    return status == 200


@pytest.mark.parametrize(
    ("kind", "body", "valid"),
    [
        ("ChatRequest", {"messages": HI}, True),
        ("ChatRequest", {"messages": []}, False),
        ("ChatRequest", {}, False),
        ("ChatRequest", {"messages": HI, "unknown": 1, "max_tokens": None}, True),
        ("ChatRequest", {"messages": [{"role": "user"}]}, False),
        ("ChatRequest", {"messages": [{"role": "assistant", "tool_calls": [{}]}]}, True),
        ("ChatRequest", {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}, "b"]}]}, True),
        ("ChatRequest", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, False),
        ("ChatRequest", {"messages": HI, "tools": [CALL], "tool_choice": "auto"}, True),
        ("ChatRequest", {"messages": HI, "tools": [{"function": {"name": "a b"}}]}, False),
        ("ChatRequest", {"messages": HI, "tool_choice": "some"}, False),
        ("ChatRequest", {"messages": HI, "chat_template": "a"}, False),
        ("ChatRequest", {"messages": HI, "chat_template_kwargs": {"chat_template": "a"}}, False),
        ("ChatRequest", {"messages": HI, "response_format": {"type": "json_schema"}}, False),
        ("ChatRequest", {"messages": HI, "response_format": {"type": "json_object"}}, True),
        ("ChatRequest", {"messages": HI, "function_call": "auto", "functions": []}, True),
        ("ChatRequest", {"messages": HI, "functions": [{}]}, False),
        ("ChatRequest", {"messages": HI, "model": "alias/name"}, True),
        ("ChatRequest", {"messages": HI, "model": "other"}, False),
        ("CompletionRequest", {"prompt": [1, 2]}, True),
        ("CompletionRequest", {"prompt": [[1], [2]], "logit_bias": {"5": 1.5}, "stop": ["a"]}, True),
        ("CompletionRequest", {"prompt": [1, "a"]}, False),
        ("CompletionRequest", {"prompt": None}, False),
        ("CompletionRequest", {"prompt": "a", "logit_bias": {"x": 1}}, False),
        ("CompletionRequest", {"prompt": "a", "stop": ""}, False),
        ("CompletionRequest", {"prompt": "a", "suffix": "b"}, True),
        ("CompletionRequest", {"prompt": "a", "allowed_token_ids": []}, False),
        ("TokenizeRequest", {"prompt": "a"}, True),
        ("TokenizeRequest", {"messages": HI, "prompt": None}, True),
        ("TokenizeRequest", {"messages": HI, "prompt": "a"}, False),
        ("TokenizeRequest", {}, False),
        ("DetokenizeRequest", {"tokens": [1]}, True),
        ("TokenizeRequest", {"prompt": ["a", "b"]}, True),
        ("TokenizeRequest", {"text": "a"}, True),
        ("TokenizeRequest", {"text": "a", "prompt": "b"}, False),
        ("DetokenizeRequest", {"tokens": [-1]}, False),
        ("DetokenizeRequest", {"tokens": [[1], [2]]}, True),
        ("DetokenizeRequest", {"tokens": [[1], 2]}, False),
    ],
)
def test_bodies(kind: str, body: dict[str, Any], valid: bool) -> None:
    assert validator(kind).is_valid(body) is valid


@pytest.mark.parametrize(
    ("role", "part", "valid"),
    [
        ("assistant", {"type": "thinking", "thinking": "Hm."}, True),
        ("assistant", {"type": "thinking", "thinking": [{"type": "text", "text": "Hm."}]}, True),
        ("assistant", {"type": "thinking"}, False),
        ("assistant", {"type": "thinking", "text": "Hm."}, False),
        ("assistant", {"type": "thinking", "thinking": None}, False),
        ("assistant", {"type": "refusal", "refusal": "No."}, True),
        ("assistant", {"type": "refusal", "text": "No."}, False),
        ("user", {"type": "thinking", "thinking": "Hm."}, False),
        ("user", {"type": "text", "text": "a"}, True),
        ("user", {"type": "text", "thinking": "a"}, False),
    ],
)
def test_parts_of_a_content_are_as_the_server_takes_them(role: str, part: dict[str, Any], valid: bool) -> None:
    messages = [{"role": role, "content": [part]}]
    assert validator("ChatRequest").is_valid({"messages": messages}) is valid
    with nullcontext() if valid else pytest.raises(ApiError):
        check_messages(msgspec.Raw(json.dumps(messages).encode()))


@pytest.mark.parametrize("number", ["3.0", "3e0", "0.3E+1", "300e-2"])
def test_a_whole_number_is_an_integer(number: str) -> None:
    """As a schema has it, however it is written; texts stay as they are."""
    body = decode(CompletionRequest, b'{"prompt":[[%s]],"user":"\\"3.0","n":%s}' % ((number.encode(),) * 2))
    assert (body.prompt, body.n, body.user) == ([[3]], 3, '"3.0')
    assert isinstance(body.n, int)


@pytest.mark.parametrize("number", ["3.5", "1e400", "1e30", '"3.0"', "true", "3.", "[3.0]"])
def test_what_is_none_is_not(number: str) -> None:
    with pytest.raises(ApiError) as caught:
        decode(CompletionRequest, b'{"prompt":"a","n":%s}' % number.encode())
    assert caught.value.status == 400


def test_numbers_cost_no_time() -> None:
    """Rewriting is linear in a body's length, whatever stands in it."""
    for rest in (b"1" * 200_000, b'"' * 200_001, b'\\"' * 100_000, b"1." * 100_000, b"-1e" * 60_000):
        with pytest.raises(ApiError):
            decode(CompletionRequest, b'{"prompt":"a","n":1.0,"top_k":"x","unknown":' + rest)


def test_a_route_is_an_entry() -> None:
    route = Route("get", "/new/{name:x+}", "operations.health", "New", Health, statuses=(404,))
    made = document(SETTINGS, [route])
    operation = made["paths"]["/new/{name}"]["get"]
    assert [parameter["name"] for parameter in operation["parameters"]] == ["name"]
    assert set(operation["responses"]) == {"200", "404"} and "Health" in made["components"]["schemas"]


class Wanted(msgspec.Struct):
    """The query of a route that a test makes."""

    often: int = 1
    loud: bool = False


def test_a_query_is_described_and_decoded_by_one_struct() -> None:
    operation = document(SETTINGS, [Route("post", "/new", "operations.health", "New", Health, query=Wanted)])
    (often, loud) = operation["paths"]["/new"]["post"]["parameters"]
    assert often == {"name": "often", "in": "query", "required": False, "schema": {"type": "integer", "default": 1}}
    assert loud["name"] == "loud" and loud["schema"] == {"type": "boolean", "default": False}
    assert decode_query(Wanted, {"often": "3", "loud": "true", "other": "x"}) == Wanted(3, True)
    assert decode_query(Wanted, {"loud": "0"}) == Wanted()
    with pytest.raises(ApiError, match=r"^loud: Expected `bool`, got `str`$") as caught:
        decode_query(Wanted, {"loud": "very"})
    assert (caught.value.status, caught.value.param) == (400, "loud")


def test_a_value_in_a_list_that_is_none_of_some_is_told_with_those() -> None:
    given: Any = {"file": b"x", "timestamp_granularities": ["letter"]}
    with pytest.raises(ApiError, match=r"timestamp_granularities\[0\]: .*; it must be segment or word$"):
        decode_query(SpeechRequest, given)


def test_administration_is_in_it_where_it_is_there() -> None:
    route = Route("post", "/new", "operations.health", "New", Health, admin=True)
    assert document(SETTINGS, [route])["paths"] == {}
    made = document(replace(SETTINGS, admin_api_key="k"), [route])
    operation = made["paths"]["/new"]["post"]
    assert set(operation["responses"]) == {"200", "401", "403"} and operation["security"]
    assert set(made["components"]["securitySchemes"]) == {"bearer", "key"}


async def test_it_is_served() -> None:
    runner = web.AppRunner(make_app(fakes.FakeEngine(), SETTINGS))
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        async with ClientSession(f"http://127.0.0.1:{runner.addresses[0][1]}") as client:
            async with client.get("/openapi.json") as answer:
                assert answer.status == 200 and await answer.json() == DOCUMENT
    finally:
        await runner.cleanup()


@pytest.mark.parametrize("with_pieces", [False, True])
@pytest.mark.parametrize("prompt", ["a", ["a", "b"]])
async def test_tokens_are_as_it_says(prompt: str | list[str], with_pieces: bool) -> None:
    async with serving.serving() as served:
        body = {"prompt": prompt, "with_pieces": with_pieces, "return_token_strs": True}
        answer = await served.ask("POST", "/tokenize", body)
    assert answer.status == 200
    validator("TokenizeAnswer").validate(answer.json)
