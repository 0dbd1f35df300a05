"""Responses over a WebSocket: what a client sends, what it is told, and what a connection knows.

A response's events are those of its stream, a message each. What a connection knows is written down whole each time it
changes, so that another process goes on with it: the response that is being made, and, of each lane, the last one that
is not kept anywhere else (`store: false`), with all that stands before it.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator
from typing import Annotated, Any

import msgspec

from ...errors import ApiError, bad_request
from ...generation.fields.decoding import decode
from ...generation.fields.depth import check_depth
from .references import Finder
from .requests import input_items
from .schemas import Object, ResponsesRequest
from .stored import StoredResponse

CREATE, STEER, CANCEL = "response.create", "response.steer", "response.cancel"
MESSAGE = "message"  # as it is called where it cannot be read
LONGEST_CANCEL = 1024  # bytes
MOST_LANES = 8  # whose last response is remembered
MOST_UNKEPT = 8 << 20  # bytes of these, pictures and all; of more than 2 MiB a successor knows nothing
ANYTHING = "?"  # stands for the input that a prepared response has not yet
encode = msgspec.json.Encoder().encode


class SocketMessage(msgspec.Struct):
    """What of a message is not the response's."""

    type: str
    stream_id: Annotated[str, msgspec.Meta(max_length=64)] | None = None  # its lane, which its events name
    generate: bool | None = None
    background: bool | None = None
    response_id: str | None = None  # of response.cancel
    # of response.steer
    previous_response_id: str | None = None
    input: Any = None

    @property
    def prepares(self) -> bool:
        """Is its prompt to be read, and nothing said?"""
        return self.generate is False


class ActiveResponse(msgspec.Struct):
    """One that is being made."""

    raw: bytes  # of its message
    seed: int
    created: int
    refs: list[int] = []


class SocketSession(msgspec.Struct):
    """Of one connection."""

    id: str
    created: int
    answers: int = 0
    active: ActiveResponse | None = None
    unkept: dict[str, tuple[str, bytes]] = {}  # by lane: the response's id, and it
    heeded: list[int] = []  # ends of messages that wait, and have ended what they were to end

    def remember(self, lane: str | None, stored: StoredResponse) -> None:
        """In the place of the lane's last, unless it is too long; the oldest make room for it."""
        self.unkept.pop(lane or "", None)
        data = stored.encode()
        if len(data) > MOST_UNKEPT:
            return
        self.unkept[lane or ""] = (stored.id, data)
        while len(self.unkept) > MOST_LANES or sum(len(one) for _, one in self.unkept.values()) > MOST_UNKEPT:
            del self.unkept[next(iter(self.unkept))]


class SocketResponses:
    """Where a connection finds responses that it goes on from: its own, and those that are kept."""

    def __init__(self, session: SocketSession, kept: Finder) -> None:
        self._session, self._kept = session, kept

    def find(self, name: str, client: str) -> StoredResponse | None:
        """See Finder."""
        for own, data in self._session.unkept.values():
            if own == name:
                return StoredResponse.decode(data)
        return self._kept.find(name, client)


def new_session(created: int) -> SocketSession:
    """Of a connection that has just begun."""
    return SocketSession(f"rsock_{secrets.token_hex(8)}", created)


def read_message(raw: bytes) -> SocketMessage:
    """ApiError names what cannot be."""
    message = decode(SocketMessage, raw, whole=MESSAGE)
    if message.type not in (CREATE, STEER, CANCEL):
        raise bad_request(f"type: {message.type[:64]!r} is not supported: it must be {CREATE!r}.", "type")
    if message.background:
        raise bad_request("background is not supported over a WebSocket.", "background")
    return message


def cancel_of(raw: bytes) -> SocketMessage | None:
    """The message, if it ends what stands before it. What is wrong with any other is told in its turn."""
    if len(raw) > LONGEST_CANCEL:
        return None
    try:
        message = read_message(check_depth(raw, MESSAGE))
    except ApiError:
        return None
    return message if message.type == CANCEL else None


def streamed(body: ResponsesRequest, prepares: bool) -> ResponsesRequest:
    """As what is asked of the model: over a WebSocket all responses are streamed."""
    body = msgspec.structs.replace(body, stream=True)
    if not prepares:
        return body
    return msgspec.structs.replace(body, input=body.input or ANYTHING, max_output_tokens=1)


def unkept(body: ResponsesRequest, key: str, ended: Object, earlier: list[Object], client: str) -> StoredResponse:
    """All up to its end: what it goes on from need not be remembered."""
    return StoredResponse(ended | {"previous_response_id": None}, [*earlier, *input_items(body, key)], client)


# --- what is told ----------------------------------------------------------------------------------------------------


def messages_of(events: bytes, lane: str | None) -> Iterator[bytes]:
    """Events of a stream, each without what is around it there."""
    end = b"" if lane is None else b',"stream_id":%s}' % encode(lane)
    for event in events.split(b"\n\n")[:-1]:
        data = event.partition(b"\ndata: ")[2]
        yield data[:-1] + end if end else data


def error_message(error: ApiError, lane: str | None) -> bytes:
    """What was wrong with a message, or with what it asked for."""
    told: Object = error.body()["error"]  # type: ignore[assignment]
    if error.retry_after is not None:
        told["headers"] = {"retry-after": str(error.retry_after)}
    return encode({"type": "error", "status": error.status, "error": told} | _lane(lane))


def not_active(raw: bytes, cancel: SocketMessage) -> ApiError:
    """Why nothing has ended."""
    if len(raw) > LONGEST_CANCEL:
        return bad_request(f"message: a {CANCEL} of more than {LONGEST_CANCEL} bytes is not read.", MESSAGE)
    text, field = "There is no response before it that could be cancelled.", "type"
    if cancel.response_id is not None:
        text, field = f"response_id: no response {cancel.response_id[:64]!r} is being made.", "response_id"
    return ApiError(400, text, field, "response_cancel_not_active")


def not_steered(message: SocketMessage) -> bytes:
    """Nobody can be told anything while he speaks: the input is given back."""
    text = "Responses cannot be steered here: send the input with the next response.create."
    problem = {"code": "steering_not_supported", "message": text, "type": "invalid_request_error"}
    steer = {"input": message.input, "previous_response_id": message.previous_response_id}
    return encode({"type": f"{STEER}.failed", "sequence_number": 0, "error": problem, "steer": steer})


def _lane(lane: str | None) -> Object:
    return {} if lane is None else {"stream_id": lane}
