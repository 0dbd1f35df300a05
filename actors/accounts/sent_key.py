"""The API key that a request brings, in headers of HTTP or metadata of gRPC. Leaf."""

from __future__ import annotations

import hmac
from collections.abc import Iterable, Mapping


def key_in(headers: Mapping[str, str]) -> str:
    """A bearer token, else X-Api-Key, whatever else stands in Authorization; names are in lower case in gRPC."""
    scheme, _, token = headers.get("authorization", "").partition(" ")
    return token.strip() if scheme.lower() == "bearer" else headers.get("x-api-key", "")


def is_among(given: bytes, keys: Iterable[bytes]) -> bool:
    return any([hmac.compare_digest(given, key) for key in keys])  # a list: all are compared
