"""aiohttp without the system's certificates until a connection needs them: 0.04 s of its import, and their memory.

aiohttp makes two TLS contexts when it is imported. The one that verifies nobody has no use for them; the one that
verifies loads them before its first connection, in whichever process that is.
"""

from __future__ import annotations

import importlib
import ssl
import sys
from typing import Any


class _LateCertificates(ssl.SSLContext):
    """The system's certificates are loaded by the first connection."""

    _loaded = False

    def _load(self) -> None:
        if not self._loaded:
            self.load_default_certs(ssl.Purpose.SERVER_AUTH)
            self._loaded = True  # behind it, for other threads

    def wrap_bio(self, *arguments: Any, **named: Any) -> ssl.SSLObject:
        self._load()
        return super().wrap_bio(*arguments, **named)

    def wrap_socket(self, *arguments: Any, **named: Any) -> ssl.SSLSocket:
        self._load()
        return super().wrap_socket(*arguments, **named)


def import_aiohttp() -> None:
    """Import aiohttp, if nobody has."""
    if "aiohttp" in sys.modules:
        return
    make = ssl.create_default_context

    def make_late() -> ssl.SSLContext:
        context = make()
        context.__class__ = _LateCertificates
        return context

    ssl.create_default_context = make_late  # type: ignore[assignment]  # aiohttp asks for it without arguments
    ssl.SSLContext.set_default_verify_paths = lambda self: None  # type: ignore[method-assign]
    try:
        importlib.import_module("aiohttp")
    finally:
        ssl.create_default_context = make
        del ssl.SSLContext.set_default_verify_paths  # what it inherits is there again
