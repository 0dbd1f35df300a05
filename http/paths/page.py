"""The paths of the page."""

from __future__ import annotations

from ..dashboard.files import TYPES
from ..route import Route

SWITCH = ("enable_page",)
PAGE: tuple[Route, ...] = (
    Route("get", "/", "page.index", "The page", page=True, open=True, options=SWITCH),
    Route("get", "/docs", "page.docs", "The list of paths", page=True, open=True, options=(*SWITCH, "enable_docs")),
    *(Route("get", f"/page/{name}", "page.file", page=True, open=True, options=SWITCH) for name in TYPES),
    Route("get", "/page/events", "page.events", "Statistics", page=True, head=False, options=SWITCH),
)
