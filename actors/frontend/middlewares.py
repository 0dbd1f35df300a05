"""Middlewares of whoever runs the server (--middleware), by their names: aiohttp's, which see each request behind its
errors' form and before anything is asked of it, keys included.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Sequence

from aiohttp.typedefs import Middleware

from ..options.config import ConfigError


def load_middlewares(names: Sequence[str]) -> list[Middleware]:
    """In their order: the first is the outermost. ConfigError says what of a name cannot be."""
    return [_load(name) for name in names]


def _load(name: str) -> Middleware:
    module, _, attribute = name.partition(":")
    try:
        found = importlib.import_module(module)
    except Exception as error:  # whatever its code does
        raise ConfigError(f"--middleware: {name}: {module} cannot be imported: {error!r}") from None
    made = getattr(found, attribute, None)
    if made is None:
        raise ConfigError(f"--middleware: {name}: {module} has no {attribute}")
    if not inspect.iscoroutinefunction(made) or not getattr(made, "__middleware_version__", 0):
        text = "is no middleware of aiohttp: an async function of (request, handler) below @aiohttp.web.middleware"
        raise ConfigError(f"--middleware: {name}: it {text}")
    return made  # type: ignore[no-any-return]
