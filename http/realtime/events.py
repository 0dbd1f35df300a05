"""The events that a client is told, as bytes, and their names in each dialect."""

from __future__ import annotations

import secrets
from collections.abc import Iterable, Mapping

import msgspec

from ..errors import ApiError
from .fields import Object

encode = msgspec.json.Encoder().encode
BETA = {  # the older names; of two that were one, the second is not told
    "conversation.item.added": "conversation.item.created",
    "conversation.item.done": "",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
}
TRANSCRIPT = "conversation.item.input_audio_transcription."
PLAIN = {  # vLLM's, which tell nothing else
    f"{TRANSCRIPT}delta": "transcription.delta",
    f"{TRANSCRIPT}completed": "transcription.done",
    "session.created": "session.created",
    "session.updated": "session.updated",
    "error": "error",
}


def told(events: Iterable[Object], beta: bool, plain: bool) -> list[bytes]:
    """As the client knows them."""
    names: Mapping[str, str] = PLAIN if plain else BETA if beta else {}
    found = []
    for event in events:
        name = names.get(event["type"], "" if plain else event["type"])
        if name:
            event_id = f"event_{secrets.token_hex(10)}"
            found.append(encode({"type": name, "event_id": event_id, **_body(event, plain)}))
    return found


def _body(event: Object, plain: bool) -> Object:
    body = {name: value for name, value in event.items() if name != "type"}
    if plain and event["type"] == "error":
        error = event["error"]
        return {"error": error["message"], "code": error["code"], "param": error["param"]}
    if plain and "transcript" in body:
        body["text"] = body["transcript"]
    return body


def error_event(error: ApiError, event_id: str | None) -> Object:
    """What was wrong with an event of the client's, or with what it asked for."""
    problem: Object = error.body()["error"]  # type: ignore[assignment]
    return {"type": "error", "error": {**problem, "event_id": event_id}}


def rate_limits(headers: Mapping[str, str]) -> list[Object]:
    """What is left of a key's limits, as the headers of answers say it."""
    limits = []
    for name in ("requests", "tokens"):
        found = [headers.get(f"x-ratelimit-{what}-{name}", "") for what in ("limit", "remaining", "reset")]
        if all(found):
            limit, remaining, reset = (int(value.rstrip("s")) for value in found)
            limits.append({"name": name, "limit": limit, "remaining": remaining, "reset_seconds": reset})
    return [{"type": "rate_limits.updated", "rate_limits": limits}] if limits else []
