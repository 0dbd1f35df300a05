"""The address of a server, and what is sent to it in headers, as options give them: looked at before it is sent."""

from __future__ import annotations

import urllib.request
from collections.abc import Mapping
from ipaddress import ip_address
from urllib.parse import urlsplit

import msgspec

from ..accounts.key_file import read_key_file
from ..options.config import Config, ConfigError


def address_of(option: str, text: str) -> str:
    """Without a slash at its end, and without the API's version. ConfigError if it cannot be one."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and text.isascii() and " " not in text
        good = good and all(0 < len(label) < 64 for label in (parts.hostname or "").rstrip(".").split("."))
        _ = parts.port
    except ValueError:
        good = False
    if not good:
        raise ConfigError(f"{option}: {text!r} is no address of a server, such as http://127.0.0.1:8000")
    return text.rstrip("/").removesuffix("/v1").rstrip("/")


def proxy_of(url: str) -> str | None:
    """The proxy of the environment that stands before a server; before one of this machine there is none."""
    parts = urlsplit(url)
    if _is_here(parts.hostname or "") or urllib.request.proxy_bypass(parts.netloc.rpartition("@")[2]):
        return None
    return urllib.request.getproxies().get(parts.scheme)


def _is_here(host: str) -> bool:
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def own_key(config: Config) -> str | None:
    """A key of the server that is started with this: of those of a file the one with the fewest limits. None where all
    that it has are hashes, or it needs none.
    """
    if config.api_key or config.key_file is None:
        return config.api_key[0] if config.api_key else None
    entries = [entry for entry in read_key_file(config.key_file) if entry.key is not None]
    limits = [sum(value not in (None, []) for value in msgspec.structs.astuple(entry)) for entry in entries]
    return entries[limits.index(min(limits))].key if entries else None


def is_sendable(value: str) -> bool:
    """May it be the value of a header?"""
    return value.isascii() and value.isprintable()


def check_headers(headers: Mapping[str, str], option: str) -> None:
    """ConfigError if one of them cannot be sent; its value is not told: it may be a key."""
    for name, value in headers.items():
        if not (is_sendable(value) and name.isascii() and name.replace("-", "").replace("_", "").isalnum()):
            raise ConfigError(f"{option}: {name!r} or its value is nothing that a header can have: ASCII, in one line")
