"""The paths of the page."""

from __future__ import annotations

from ..dashboard.files import TYPES
from ..route import Route

PAGE: tuple[Route, ...] = (
    Route("get", "/", "page.index", "The page", page=True, open=True),
    Route("get", "/docs", "page.docs", "The list of paths", page=True, open=True),
    *(Route("get", f"/page/{name}", "page.file", page=True, open=True) for name in TYPES),
    Route("get", "/page/events", "page.events", "Statistics", page=True, head=False),
)
