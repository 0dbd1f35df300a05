"""Whose a file or a batch is, and by which key the batcher asks for him.

The key is signed by a secret that the supervisor makes anew for each life of the server, and that its actors alone
have. So a batch's lines come as requests of its owner, whose limits hold for them, and nobody's key is written down.
"""

from __future__ import annotations

import base64
import binascii
import hmac

import msgspec

from ..protocol.wire import UNREADABLE

SECRET_BYTES = 32
PREFIX = b"batch_"
MAC_BYTES = 32


class Owner(msgspec.Struct, frozen=True, array_like=True):
    """Who asked. Others do not find what is his."""

    client: str = ""  # idempotency_keys.client_of his key; empty where no key is asked for
    account: str = ""  # the name of the key, where that is one of --key-file


def write_key(owner: Owner, secret: bytes) -> str:
    """By which his lines are asked; always the same for him."""
    payload = msgspec.msgpack.encode(owner)
    mac = hmac.digest(secret, payload, "sha256")
    return PREFIX.decode() + base64.urlsafe_b64encode(mac + payload).decode().rstrip("=")


def read_key(given: bytes, secret: bytes) -> Owner | None:
    """For whom it asks; None if it is no such key of this server."""
    if not secret or not given.startswith(PREFIX):
        return None
    text = given.removeprefix(PREFIX)
    try:
        data = base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
        if not hmac.compare_digest(data[:MAC_BYTES], hmac.digest(secret, data[MAC_BYTES:], "sha256")):
            return None
        return msgspec.msgpack.decode(data[MAC_BYTES:], type=Owner)
    except (binascii.Error, *UNREADABLE):
        return None
