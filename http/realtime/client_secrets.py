"""Client secrets: keys for a short while, which pages may have and which open /v1/realtime alone.

A secret says whose key has asked for it, until when it holds and how its sessions begin, and is signed by what follows
from that key. So nothing is kept of it: any frontend and any server with the same keys understands it, whoever died
meanwhile, and it ends with its key at the latest. Whoever has one can try guesses of the key; each of them costs some
hundredths of a second.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
from functools import lru_cache
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from actorserve.actors.protocol.wire import UNREADABLE

from ..errors import ApiError, bad_request
from .fields import SessionFields

PREFIX = b"ek_"
MAC_BYTES = 32
ROUNDS = 50_000  # of what a guess costs
MOST_SESSION = 3000  # bytes of a session, as JSON: it stands in a header of the connection
Seconds = Annotated[int, Meta(ge=10, le=7200)]


class ExpiresAfter(msgspec.Struct, forbid_unknown_fields=True):
    """From when on, and for how long."""

    anchor: Literal["created_at"] = "created_at"
    seconds: Seconds = 600


class ClientSecretRequest(msgspec.Struct, forbid_unknown_fields=True):
    """POST /v1/realtime/client_secrets."""

    expires_after: ExpiresAfter | None = None
    session: SessionFields | None = None


class SecretFields(msgspec.Struct, forbid_unknown_fields=True):
    expires_after: ExpiresAfter | None = None


class BetaSessionRequest(msgspec.Struct):
    """POST /v1/realtime/sessions, the older one: a session's fields by their older names, of which these are two."""

    model: str | None = None
    client_secret: SecretFields | None = None


class Grant(msgspec.Struct, array_like=True, frozen=True):
    """What a secret says."""

    until: int  # Unix seconds
    owner: str  # the name of the key in --key-file; empty: another key, or none
    model: str
    session: bytes  # JSON of SessionFields


class SignedGrant(NamedTuple):
    grant: Grant
    mac: bytes
    payload: bytes

    def is_signed_by(self, digest: bytes) -> bool:
        """`digest` of a key."""
        return hmac.compare_digest(self.mac, _mac(self.payload, digest))


def write_secret(until: int, owner: str, model: str, session: SessionFields, digest: bytes) -> str:
    """`digest` of the key that has asked. 400 where the session is longer than headers are."""
    told = msgspec.json.encode(session)
    if len(told) > MOST_SESSION:
        text = f"session has {len(told)} bytes; a secret has room for {MOST_SESSION}. session.update takes longer ones."
        raise bad_request(text, "session")
    payload = msgspec.msgpack.encode(Grant(until, owner, model, told))
    return PREFIX.decode() + base64.urlsafe_b64encode(_mac(payload, digest) + payload).decode().rstrip("=")


def read_secret(given: bytes) -> SignedGrant:
    """401 for what is none."""
    text = given.removeprefix(PREFIX)
    try:
        data = base64.b64decode(text + b"=" * (-len(text) % 4), b"-_", validate=True)
        payload = data[MAC_BYTES:]
        return SignedGrant(msgspec.msgpack.decode(payload, type=Grant), data[:MAC_BYTES], payload)
    except (binascii.Error, *UNREADABLE):
        raise unknown_secret() from None


def unknown_secret() -> ApiError:
    return ApiError(401, "Incorrect client secret.", code="invalid_api_key")


def expired_secret() -> ApiError:
    return ApiError(401, "The client secret has expired.", code="client_secret_expired")


def _mac(payload: bytes, digest: bytes) -> bytes:
    return hmac.digest(_signing_key(digest), payload, "sha256")


@lru_cache(maxsize=2048)
def _signing_key(digest: bytes) -> bytes:
    return hashlib.pbkdf2_hmac("sha256", digest, b"actorserve client secrets", ROUNDS)
