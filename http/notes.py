"""What the app notes on a request."""

from __future__ import annotations

from aiohttp import web

REQUEST_ID = web.RequestKey("request_id", str)
REPLAYED = web.RequestKey("replayed", bool)  # the answer was given, or is being given, to an earlier request, too
