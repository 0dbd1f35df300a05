"""Paths that an option turns off: what is on them is for people and their dashboards, and no answer depends on it."""

from __future__ import annotations

from .page import PAGE

DOCUMENTS = ("/docs", "/openapi.json")
OPTIONAL: dict[str, frozenset[str]] = {  # by the option that says whether they are there
    "enable_page": frozenset(route.path for route in PAGE),
    "enable_docs": frozenset(DOCUMENTS),
    "enable_metrics": frozenset(("/metrics",)),
    "enable_slots": frozenset(("/slots",)),
}


def turned_off(path: str, off: frozenset[str]) -> str:
    """The option that has turned this path off; `off`: all that are. Empty: it is there."""
    return next((option for option, paths in OPTIONAL.items() if option in off and path in paths), "")
