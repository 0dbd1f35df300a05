"""`encrypted_content`: what a client keeps of a response that is not kept here, and sends back.

It is opaque and no secret. What it holds the client may send as text as well, and is told as text beside it; so there
is nothing that a key would protect, and none that all frontends, all servers behind a router and their next start would
have to share. A checksum finds what was cut or changed on the way, and what another server has made.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
from typing import Literal

from ...errors import ApiError

Purpose = Literal["reasoning", "compaction"]  # the item's type
VERSION = "as1_"
CHECKSUM_BYTES = 12
CODE = "invalid_encrypted_content"


def encrypted(purpose: Purpose, text: str) -> str:
    """The text as a client keeps it."""
    data = text.encode(errors="replace")
    return VERSION + base64.urlsafe_b64encode(_checksum(purpose, data) + data).decode()


def decrypted(purpose: Purpose, content: str, path: str) -> str:
    """The text again. 400 names the field at `path` where it is not what an item of this type was given here."""
    sealed = b""
    if content.startswith(VERSION):
        with contextlib.suppress(ValueError):
            sealed = base64.b64decode(content.removeprefix(VERSION), altchars=b"-_", validate=True)
    checksum, data = sealed[:CHECKSUM_BYTES], sealed[CHECKSUM_BYTES:]
    if checksum != _checksum(purpose, data):
        message = f"{path} could not be verified: send it as this server gave it, or leave it out."
        raise ApiError(400, message, path, CODE)
    return data.decode(errors="replace")


def _checksum(purpose: Purpose, data: bytes) -> bytes:
    return hashlib.sha256(purpose.encode() + b"\0" + data).digest()[:CHECKSUM_BYTES]
