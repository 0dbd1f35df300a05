"""The table of routes: all that the app serves is in it, once, and nobody else holds a path."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import Path

import pytest
from aiohttp import web

from actorserve.http.app import make_app
from actorserve.http.openapi.answers import Error
from actorserve.http.openapi.cohere import CohereError
from actorserve.http.openapi.dialects import AnthropicError
from actorserve.http.openapi.error_bodies import BODIES
from actorserve.http.openapi.tgi import TgiError
from actorserve.http.route import Route
from actorserve.http.routes import BATCHED, GENERATING, PAGE_PATHS, PROBE_PATHS, ROUTES, error_of
from tests.http.fakes import FakeEngine
from tests.http.serving import SETTINGS, Served, serving

ROOT = Path(__file__).resolve().parents[2]
BUILT = [route for route in ROUTES if route.handler]


def served_by(app: web.Application) -> Counter[tuple[str, str]]:
    return Counter(
        (route.method.lower(), route.resource.canonical) for route in app.router.routes() if route.resource is not None
    )


def test_lines_of_batches_may_be_of_what_makes_something_of_json() -> None:
    made = {"/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank"}
    assert made < set(BATCHED) and all(path.startswith("/v1/") and "{" not in path for path in BATCHED)
    assert not {"/v1/audio/transcriptions", "/v1/files", "/v1/batches", "/v1/models", "/v1/realtime"} & set(BATCHED)


async def test_every_route_of_the_app_is_in_it_once() -> None:
    heads = [("head", route.template) for route in BUILT if route.method == "get" and route.head]
    wanted = Counter([*heads, *((route.method, route.template) for route in BUILT)])
    assert served_by(make_app(FakeEngine(), SETTINGS)) == wanted
    assert set(wanted.values()) == {1}
    everything = Counter((route.method, route.template) for route in ROUTES)
    assert set(everything.values()) == {1}


def test_what_administration_keeps_free_is_served_by_nothing_else() -> None:
    admin = {route.path for route in ROUTES if route.admin}
    assert {route.path for route in ROUTES if not route.handler} <= admin
    assert not admin & {route.path for route in ROUTES if not route.admin}


def strings_of(file: Path) -> set[str]:
    """The literals of a module, docstrings not among them."""
    tree = ast.parse(file.read_text())
    loose = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    constants = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in loose)
    return {node.value for node in constants if isinstance(node.value, str)}


def test_a_path_stands_in_one_place() -> None:
    """No module beside the tables has a path, or the begin of one, as its own; and no two tables have the same."""
    parts = {route.path.split("{")[0].rstrip("/") for route in ROUTES} - {""}
    files = [*(ROOT / "http").rglob("*.py"), *(ROOT / "actors" / "frontend").rglob("*.py")]
    found = {str(file.relative_to(ROOT)): strings_of(file) & parts for file in files}
    tables = {file: found.pop(file) for file in list(found) if file.endswith("routes.py") or "/paths/" in file}
    assert set().union(*tables.values()) > {"/v1/chat/completions", "/v1/responses", "/health", "/pause"}
    assert not {file: paths for file, paths in found.items() if paths}
    assert max(Counter(path for paths in tables.values() for path in paths).values()) == 1


# --- what is read from it ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("keys", [[], ["one"]])
async def test_it_says_where_a_key_is_asked_for(keys: list[str]) -> None:
    async with serving(api_keys=keys) as served:
        for route in BUILT:
            if not route.admin and (route.head or route.upgrades or route.method != "get"):  # else it has no end
                assert (await status_of(served, route) == 401) == (bool(keys) and not route.open), route


async def test_a_stream_without_an_end_asks_for_a_key_too() -> None:
    async with serving(api_keys=["one"]) as served:
        assert await status_of(served, next(route for route in ROUTES if not route.head)) == 401


async def status_of(served: Served, route: Route) -> int:
    path = re.sub(r"\{\w+\}", "tiny", route.template)
    return (await served.ask(route.method.upper(), path, b"" if route.method == "post" else None)).status


def test_what_generates_streams_and_is_repeatable() -> None:
    streaming = {route.path for route in ROUTES if route.event is not None and not route.hears}
    generating = streaming - {"/api/pull", "/models/sse"}  # what these tell of models is no answer of one
    whole = {"/v1/responses/compact", "/responses/compact"}  # a summary comes at once
    assert set(GENERATING) == generating | whole == {route.path for route in ROUTES if route.repeatable}
    assert GENERATING["/v1/messages"] == "chat" and GENERATING["/inference/v1/generate"] == "text_completion"


def test_whose_errors_are_told() -> None:
    below = ("/v1/messages", "/v1/messages/count_tokens", "/v1/messages/batches")
    assert {error_of(path) for path in below} == {AnthropicError}
    assert {error_of(path) for path in ("/v1/chat", "/v1/chat/", "/v1/chat/nothing")} == {CohereError}
    of_openai = ("/v1/chat/completions", "/v1/chat/completions/nothing")  # although they are below Cohere's
    others = (*of_openai, "/v1/models", "/v1/responses", "/x", "//", "/messages", "/v1/messages2")
    assert {error_of(path) for path in others} == {Error} and error_of("/") is TgiError
    assert {route.error for route in ROUTES} == {Error, *BODIES}
    many = "/x" * (1 << 20)  # no step is for each of them: it would copy the rest
    assert (error_of(many), error_of("/v1/messages" + many)) == (Error, AnthropicError)


def test_what_is_answered_at_once() -> None:
    """On a connection of the reserve, and before what waits for its turn: how the server is, and no page."""
    names = "health", "v1/health", "health_generate", "livez", "ping", "ready", "readyz", "version", "metrics"
    assert {f"/{name}" for name in names} == PROBE_PATHS
    assert not PROBE_PATHS & PAGE_PATHS
