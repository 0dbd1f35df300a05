"""GET /openapi.json: what every path takes and answers. A path is one entry of routes.py; schemas come from the structs
that requests are decoded into (requests.py), and from those that say what answers are (answers.py).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from http import HTTPStatus

import msgspec

import actorserve

from ..generation.idempotency import CLOSED, MAX_KEY, STATE
from ..output.writer import NDJSON
from ..route import Route
from ..routes import ROUTES
from ..settings import Settings
from .dialect_requests import narrow_dialects
from .requests import Book, Schema, make_book

JSON, FORM = "application/json", "multipart/form-data"
PLAIN: dict[type, str] = {dict: "object", list: "array"}  # answers of which no more is said


def document(settings: Settings, routes: Iterable[Route] = ROUTES) -> Schema:
    """The whole document, of the server with these settings."""
    routes = [route for route in routes if _is_listed(route, settings)]
    requests = dict.fromkeys(route.request for route in routes if route.request is not None)  # in the table's order
    book = make_book(_structs(routes), requests, settings)
    narrow_dialects(book)
    components: Schema = {"schemas": book.schemas}
    paths: dict[str, Schema] = {}
    for route in routes:
        paths.setdefault(route.template, {})[route.method] = _operation(route, book)
    if any(_is_guarded(route, settings) for route in routes):
        components["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "key": {"type": "apiKey", "in": "header", "name": "X-Api-Key"},
        }
    return {
        "openapi": "3.1.0",
        "info": {"title": "actorserve", "version": actorserve.__version__, "description": "Large language models."},
        "servers": [{"url": settings.root_path or "/"}],
        "paths": paths,
        "components": components,
    }


def _is_listed(route: Route, settings: Settings) -> bool:
    """Is it of the API, there, and what a model is for?"""
    return (
        bool(route.handler)
        and any(route.is_for(one) for one in settings.all_models)
        and route.listed
        and not (route.page or route.refuses)
        and (not route.is_for_admins(settings) or settings.admin_api_key is not None)
        and (not route.of_keys or settings.accounts.enabled)
        and (not route.of_files or settings.files is not None)
        and not route.off_by(settings.off)
    )


def _is_guarded(route: Route, settings: Settings) -> bool:
    return route.is_for_admins(settings) or (settings.wants_keys and not route.open)


def _structs(routes: Iterable[Route]) -> Iterator[type]:
    """Of all that is answered."""
    for route in routes:
        listed = route.lists if isinstance(route.lists, type) else None
        kinds = (route.answer, route.other, route.event, route.error, listed, *(kind for _, kind in route.others))
        yield from (kind for kind in kinds if kind is not None and kind not in PLAIN)


def _operation(route: Route, book: Book) -> Schema:
    operation: Schema = {
        "operationId": re.sub(r"\W+", "_", f"{route.method}{route.template}").strip("_"),
        "summary": route.summary,
        "responses": {"101": {"description": "Switching Protocols"}}
        if route.upgrades
        else {"200": _success(route, book)},
    }
    if parameters := _parameters(route, book):
        operation["parameters"] = parameters
    if route.request is not None:
        form = FORM if route.hears or route.form else JSON
        operation["requestBody"] = {"required": True, "content": {form: {"schema": book.ref(route.request)}}}
    statuses = {*route.statuses, *((403,) if route.is_for_admins(book.settings) else ())}
    if _is_guarded(route, book.settings):
        operation["security"] = [{"bearer": []}, {"key": []}]
        operation["responses"]["401"] = _answer(401, book.ref(route.error))
    for status in sorted(statuses):
        operation["responses"][str(status)] = _answer(status, book.ref(route.error))
    for status, kind in route.others:
        operation["responses"][str(status)] = _answer(status, book.ref(kind))
    return operation


def _answer(status: int, schema: Schema) -> Schema:
    return {"description": HTTPStatus(status).phrase, "content": {JSON: {"schema": schema}}}


def _success(route: Route, book: Book) -> Schema:
    text = {route.text: {"schema": {"type": "string"}}}
    if route.answer is None:
        return {"description": "OK", "content": text}
    schema = {"type": PLAIN[route.answer]} if route.answer in PLAIN else book.ref(route.answer)
    if route.other is not None:
        schema = {"anyOf": [schema, book.ref(route.other)]}
    if route.lists:
        listed = book.ref(route.lists) if isinstance(route.lists, type) else schema
        schema = {"anyOf": [schema, {"type": "array", "items": listed}]}
    answer = _answer(200, schema)
    if route.as_text:
        answer["content"] |= text
    if route.event is not None:
        kinds = [book.ref(route.event), book.ref(route.error)]
        answer["content"][route.stream] = {
            "schema": {"anyOf": kinds} if route.stream == NDJSON else _event(kinds, route)
        }
    return answer


def _event(kinds: list[Schema], route: Route) -> Schema:
    """One event of a stream."""
    data: Schema = {"contentMediaType": JSON, "contentSchema": {"anyOf": kinds}}
    if route.ends:
        data = {"anyOf": [{"const": route.ends}, data]}
    return {
        "type": "object",
        "description": "An event as its fields.",
        "properties": {"data": {"type": "string", **data}, "id": {"type": "string"}, "event": {"type": "string"}},
        "required": ["data"],
    }


def _parameters(route: Route, book: Book) -> list[Schema]:
    names = re.findall(r"\{(\w+)\}", route.template)
    fixed = () if book.settings.adapters.enabled else ("model",)
    found = [
        _parameter(
            name,
            "path",
            {"enum": book.settings.all_served} if name in fixed else {"type": "string", "minLength": 1},
        )
        for name in names
    ]
    if route.query is not None:
        found += [_parameter(name, "query", schema) for name, schema in _fields(route.query).items()]
    if route.repeatable:
        found += [
            _parameter("Idempotency-Key", "header", {"type": "string", "maxLength": MAX_KEY}),
            _parameter("Last-Event-ID", "header", {"type": "string", "pattern": _EVENT_ID}),
        ]
    return found


def _fields(kind: type) -> dict[str, Schema]:
    """Of a struct of plain values, by their names."""
    fields: dict[str, Schema] = msgspec.json.schema(kind)["$defs"][kind.__name__]["properties"]
    return fields


_EVENT_ID = rf"^{STATE.pattern}(\.{STATE.pattern})*{CLOSED}?$"


def _parameter(name: str, where: str, schema: Schema) -> Schema:
    return {"name": name, "in": where, "required": where == "path", "schema": schema}
