"""GET /openapi.json and GET /docs: the document, and its paths as a page that asks for nothing and runs nothing."""

from __future__ import annotations

import base64
import hashlib
from functools import cached_property
from html import escape

from aiohttp import web

from .errors import json_response
from .openapi import document
from .openapi_requests import Schema
from .settings import Settings

STYLE = "body{font:16px sans-serif;max-width:60em;margin:2em auto}td{padding:.2em 1em .2em 0;vertical-align:top}"
STYLE_HASH = base64.b64encode(hashlib.sha256(STYLE.encode()).digest()).decode()
NOTHING_ELSE = "default-src 'none'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
HEADERS = {
    "Content-Security-Policy": f"{NOTHING_ELSE}style-src 'sha256-{STYLE_HASH}'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
}


class Described:
    """The handlers. The document is made when somebody asks for it: a frontend's start does not wait for it."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _document(self) -> Schema:
        return document(self._settings)

    async def document(self, request: web.Request) -> web.Response:
        return json_response(self._document)

    async def page(self, request: web.Request) -> web.Response:
        return web.Response(text=page(self._document), content_type="text/html", charset="utf-8", headers=HEADERS)


def page(described: Schema) -> str:
    """The paths as a table."""
    rows = "".join(
        f"<tr><td>{method.upper()}<td><code>{escape(path)}</code><td>{escape(operation['summary'])}"
        f"<td>{' '.join(operation['responses'])}"
        for path, methods in described["paths"].items()
        for method, operation in methods.items()
    )
    title = escape(f"{described['info']['title']} {described['info']['version']}")
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title><style>{STYLE}</style>'
        f'<h1>{title}</h1><p>Bodies and answers are described in <a href="openapi.json">openapi.json</a>.'
        f"<table>{rows}</table></html>"
    )
