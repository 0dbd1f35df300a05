"""Items of a conversation: as clients send them, as they are kept and told, and as the Responses request has them."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Sequence

from ..errors import bad_request
from .audio import wav
from .fields import CallItem, CallOutputItem, MessageItem, Object, fields_of
from .session import Session

PARTS = {
    "user": ("input_text", "input_audio", "input_image"),
    "system": ("input_text",),
    "assistant": ("output_text", "text"),
}
SOUND = "input_audio"


def checked_item(given: Object, session: Session, hears: bool, path: str = "item") -> Object:
    """The item as it is kept; ApiError 400 names what cannot be."""
    kind = given.get("type")
    item_id = given.get("id") or session.new_item_id()
    if not isinstance(item_id, str) or not 0 < len(item_id) <= 64:
        raise bad_request(f"{path}.id must be a string of at most 64 characters.", f"{path}.id")
    head = {"id": item_id, "object": "realtime.item", "type": kind, "status": "completed"}
    own = {name: value for name, value in given.items() if name not in ("id", "object", "type", "status")}
    if kind == "message":
        message = fields_of(MessageItem, own, path)
        parts = [
            _part(part, message.role, f"{path}.content[{index}]", hears) for index, part in enumerate(message.content)
        ]
        return head | {"role": message.role, "content": parts}
    if kind == "function_call":
        call = fields_of(CallItem, own, path)
        return head | {"call_id": call.call_id or item_id, "name": call.name, "arguments": call.arguments}
    if kind == "function_call_output":
        output = fields_of(CallOutputItem, own, path)
        return head | {"call_id": output.call_id, "output": output.output}
    text = "message, function_call or function_call_output"
    raise bad_request(f"{path}.type must be {text}, not {kind!r:.64}.", f"{path}.type")


def _part(part: Object, role: str, path: str, hears: bool) -> Object:
    kind = part.get("type")
    if kind not in PARTS[role]:
        text = f"{path}.type must be {' or '.join(PARTS[role])} in a message of the {role}"
        raise bad_request(f"{text}, not {kind!r:.64}.", f"{path}.type")
    if kind == SOUND:
        return _sound(part, path, hears)
    name = "image_url" if kind == "input_image" else "text"
    if not isinstance(part.get(name), str):
        raise bad_request(f"{path}.{name} must be a string.", f"{path}.{name}")
    if kind == "text":
        kind = "output_text"  # its older name
    return {"type": kind, name: part[name]}


def _sound(part: Object, path: str, hears: bool) -> Object:
    if not hears:
        raise bad_request(f"{path}: this model takes no sounds.", path)
    audio = part.get("audio")
    try:
        data = base64.b64decode(audio if isinstance(audio, str) else "", validate=True)
    except (binascii.Error, ValueError):
        data = b""
    if len(data) < 2 or len(data) % 2:
        raise bad_request(f"{path}.audio must be PCM of 16 bits in base64.", f"{path}.audio")
    return {"type": SOUND, "audio": audio, "transcript": part.get("transcript")}


def sound_item(item_id: str, samples: bytes | None) -> Object:
    """The user's message that was spoken; None: its sound is not kept."""
    part: Object = {"type": SOUND, "transcript": None}
    if samples is not None:
        part["audio"] = base64.b64encode(samples).decode()
    head = {"id": item_id, "object": "realtime.item", "type": "message", "status": "completed"}
    return head | {"role": "user", "content": [part]}


def without_sounds(item: Object) -> Object:
    """As it is told in events."""
    if item["type"] != "message":
        return item
    parts = [{name: value for name, value in part.items() if name != "audio"} for part in item["content"]]
    return item | {"content": parts}


def as_input(items: Iterable[Object], rate: int) -> list[Object]:
    """`input` of the Responses request."""
    return [_as_input(item, rate) for item in items]


def _as_input(item: Object, rate: int) -> Object:
    plain = {name: value for name, value in item.items() if name not in ("object", "status", "id")}
    if item["type"] != "message":
        return plain
    return plain | {"content": [_as_part(part, rate) for part in item["content"]]}


def _as_part(part: Object, rate: int) -> Object:
    if part["type"] != SOUND:
        return part
    data = base64.b64encode(wav(base64.b64decode(part["audio"]), rate)).decode()
    return {"type": SOUND, SOUND: {"data": data, "format": "wav"}}


def input_of(given: Sequence[Object], session: Session, hears: bool) -> list[Object]:
    """`input` of response.create: items, and references to some of the conversation."""
    found = []
    for index, item in enumerate(given):
        path = f"response.input[{index}]"
        if item.get("type") == "item_reference":
            found.append(session.items[session.place_of(str(item.get("id")), f"{path}.id")])
        else:
            found.append(checked_item(item, session, hears, path))
    return found
