"""What a router has to know of a request: its model, whether it streams, and what it has in common with others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b

import msgspec

from .trails.transcript import model_of

BLOCK = 256  # bytes of a body's text that are looked for together
MOST_BLOCKS = 1024
MOVABLE = frozenset(
    {
        "/v1/chat/completions",
        "/chat/completions",
        "/v1/chat/completions/batch",
        "/v1/completions",
        "/api/v0/chat/completions",
        "/api/v0/completions",
        "/v1/messages",
        "/v1/responses",
        "/responses",
        "/inference/v1/generate",
        "/invocations",
        "/v1/chat",
        "/cohere/v1/chat",
        "/v2/chat",
        "/cohere/v2/chat",
        "/completion",
        "/completions",
        "/infill",
        "/generate",
        "/generate_stream",
        "/",
        "/api/chat",
        "/api/generate",
    }
)
RESPONSES = frozenset(f"{start}/responses{end}" for start in ("", "/v1") for end in ("", "/compact"))
# streamed unless the body says that it is not to be
BY_ITSELF = frozenset({"/api/chat", "/api/generate", "/generate_stream"})

UNSAID = ("", "application/x-www-form-urlencoded", "application/octet-stream")  # where a client names no type
JSON = frozenset({*UNSAID, "application/json", "text/json"})
MODEL_FIRST = frozenset({"/generate"})  # where a model goes before an adapter that is named beside it
SESSION = "X-Session-ID"  # vLLM's header for the same label as session_id


class Fields(msgspec.Struct):
    """Of a body, whatever API it is of. What is of another type is for the replica to refuse."""

    model: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    lora_path: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # SGLang's: an adapter's name
    lora_name: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # of an adapter to load: lora_path is a folder
    stream: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    system: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    tools: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    messages: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    input_extra: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # of /infill, whose prompt comes last
    input_prefix: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    input_suffix: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    prompt: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    text: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # these two are SGLang's
    input_ids: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    inputs: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)  # Text Generation Inference's
    token_ids: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    session_id: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    session_params: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    previous_response_id: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    conversation: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class SessionOf(msgspec.Struct):
    """What names a request's session in its `session_params`."""

    id: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)


class ItemOf(msgspec.Struct):
    """An item of a response's input."""

    type: str | None = None


decode = msgspec.json.Decoder(Fields).decode
items_of = msgspec.json.Decoder(list[ItemOf]).decode
REFERENCE = "item_reference"


@dataclass(frozen=True)
class RoutedRequest:
    """One request."""

    method: str
    path: str  # with its query
    headers: Mapping[str, str]  # for the replica
    body: bytes
    model: str = ""
    moves: bool = False  # another replica can go on with its stream
    key: str = ""  # of requests that belong to one replica
    prefix: list[bytes] = field(default_factory=list)  # a hash for each block of its text and all before it
    size: int = 0  # bytes of its text
    goes_on: bool = False  # from a response or with a conversation, which one replica keeps


def is_json(given: str) -> bool:
    """Does a replica read a body of this Content-Type as JSON?"""
    kind = given.partition(";")[0].strip().lower()
    return kind in JSON or kind.endswith("+json")


def understand(method: str, path: str, headers: Mapping[str, str], body: bytes, json: bool) -> RoutedRequest:
    """`json`: the body is said to be that."""
    key = headers.get("Idempotency-Key", "")
    if not (json and body):
        model = model_of(path.partition("?")[0], body)
        return RoutedRequest(method, path, headers, body, model=model, key=key, size=len(body))
    try:
        body.decode()
        fields = decode(body)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return RoutedRequest(method, path, headers, body, key=key, size=len(body))
    session = _session(bytes(fields.session_params))
    parts = [fields.system, fields.tools, fields.messages]
    parts += [fields.input_extra, fields.input_prefix, fields.input_suffix]
    parts += [fields.prompt, fields.text, fields.input_ids, fields.input, fields.inputs, fields.token_ids]
    text = b"\0".join(map(bytes, parts))
    model = _model(path.partition("?")[0], fields)
    return RoutedRequest(
        method,
        path,
        headers,
        body,
        model=model,
        moves=method == "POST" and _moves(path.partition("?")[0], bytes(fields.stream)) and not session,
        key=session or _text(bytes(fields.session_id)) or headers.get(SESSION) or key,
        prefix=blocks_of(model.encode() + b"\0" + text.rstrip(b"\0")),
        size=len(text),
        goes_on=path.partition("?")[0] in RESPONSES and _goes_on(fields),
    )


def _model(path: str, fields: Fields) -> str:
    """What a replica has to have: the adapter that is named, or else the model."""
    model = _text(bytes(fields.model))
    if bytes(fields.lora_name) or (model and path in MODEL_FIRST):
        return model
    return _adapter(bytes(fields.lora_path)) or model


def _adapter(raw: bytes) -> str:
    """The first of those that a list names for each prompt: where they differ any replica refuses them."""
    try:
        given = msgspec.json.decode(raw, type=str | list[str | None] | None) if raw else None
    except msgspec.MsgspecError:
        return ""
    return (given if isinstance(given, str) else next(iter(given or ()), None)) or ""


def _goes_on(fields: Fields) -> bool:
    """Does it name a response, an item of one, or a conversation?"""
    if any(bytes(name) not in (b"", b"null") for name in (fields.previous_response_id, fields.conversation)):
        return True
    given = bytes(fields.input)
    try:
        return REFERENCE.encode() in given and any(item.type == REFERENCE for item in items_of(given))
    except msgspec.MsgspecError:
        return False


def _moves(path: str, stream: bytes) -> bool:
    """Is its answer a stream that another replica can go on with?"""
    if path in BY_ITSELF:
        return stream != b"false"
    return path in MOVABLE and stream == b"true"


def _session(raw: bytes) -> str:
    """That whose tokens one replica alone has."""
    try:
        return _text(bytes(msgspec.json.decode(raw, type=SessionOf).id)) if raw not in (b"", b"null") else ""
    except msgspec.MsgspecError:
        return ""


def _text(raw: bytes) -> str:
    try:
        return msgspec.json.decode(raw, type=str) if raw else ""
    except msgspec.MsgspecError:
        return ""


def blocks_of(text: bytes) -> list[bytes]:
    """A hash for each whole block, of all up to its end."""
    made, state = [], blake2b(digest_size=8)
    for start in range(0, min(len(text) // BLOCK, MOST_BLOCKS) * BLOCK, BLOCK):
        state.update(text[start : start + BLOCK])
        made.append(state.copy().digest())
    return made
