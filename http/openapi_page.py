"""GET /openapi.json: the document of all paths, made when somebody asks for it."""

from __future__ import annotations

from functools import cached_property

from aiohttp import web

from .errors import json_response
from .openapi import document
from .openapi_requests import Schema
from .settings import Settings


class Described:
    """The handler. A frontend's start does not wait for the document."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    @cached_property
    def _document(self) -> Schema:
        return document(self._settings)

    async def document(self, request: web.Request) -> web.Response:
        return json_response(self._document)
