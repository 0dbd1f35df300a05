"""GET /openapi.json: the document of all paths, made when somebody asks for it."""

from __future__ import annotations

from functools import cached_property

from aiohttp import web

from ..openapi.document import document
from ..openapi.requests import Schema
from ..settings import Settings
from ..transport.json_response import json_response


class Described:
    """The handler. A frontend's start does not wait for the document."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _document(self) -> Schema:
        return document(self._settings)

    async def document(self, request: web.Request) -> web.Response:
        return json_response(self._document)
