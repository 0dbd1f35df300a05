"""How a stream ends with which nobody goes on: its client is told so by an error of its API, behind the last event that
is whole, as a server ends a stream that fails. Where no such can stand the connection breaks off.
"""

from __future__ import annotations

import re

import msgspec

MOST_HELD = 32 << 20  # bytes of one event
EVENTS, LINES = "text/event-stream", "application/x-ndjson"
MESSAGE = "The server that made this answer was lost, and no other one can go on with it. Ask again."
COHERE_ERROR = {"error": MESSAGE, "finish_reason": "ERROR"}
CODE, KIND = "server_lost", "server_error"
VERSION = "/v1"
COHERE = {"/v1/chat": 1, "/v1/cohere/v1/chat": 1, "/v1/v2/chat": 2, "/v1/cohere/v2/chat": 2}  # versions of its API
TGI = (VERSION + "/", VERSION + "/generate_stream")  # paths of Text Generation Inference's API
LLAMACPP = "/completions"  # its API's, where /v1/completions is OpenAI's
MARKED = (  # paths of streams that are closed by a mark, also behind an error
    *("/v1/chat/completions", "/v1/chat/completions/batch", "/v1/completions", "/v1/fim/completions"),
    *("/v1/invocations", "/v1/inference/v1/generate", "/v1/generate"),
    *("/v1/api/v0/chat/completions", "/v1/api/v0/completions"),  # LM Studio's
)
CHUNK = b'"choices":'  # has it, and no text of an event, in which quotation marks are escaped
MARK = b"data: [DONE]\n\n"
NUMBER = re.compile(rb'"sequence_number":\s*(\d+)')
encode = msgspec.json.Encoder().encode


class Ending:
    """Of one stream, by what was asked for and in which form it is answered."""

    def __init__(self, path: str, content_type: str, is_encoded: bool = False) -> None:
        """`is_encoded`: its bytes are compressed, or otherwise nothing that can be written to."""
        self._path = path if path.startswith(VERSION) else VERSION + path  # OpenAI's paths may lack it
        kind = content_type.partition(";")[0].strip().lower()
        self._mark = MARK if self._path in MARKED and path != LLAMACPP else b""
        self._between = {EVENTS: b"\n\n", LINES: b"\n"}.get(kind, b"") if not is_encoded else b""
        self._held = b""
        self._number = -1  # of the last event of a response
        self._has_chunks = False  # it is a transcript in chunks, which are vLLM's

    def whole(self, data: bytes) -> bytes:
        """What has come up to the end of an event; `rest` is what stands behind it."""
        if not self._between:
            return data
        self._held += data
        end = self._held.rfind(self._between)
        if end < 0 and len(self._held) <= MOST_HELD:
            return b""
        if end < 0:
            self._between = b""  # it is nothing of which one knows where its events end
            return self.rest()
        end += len(self._between)
        passed, self._held = self._held[:end], self._held[end:]
        return passed

    def rest(self) -> bytes:
        """What stands behind the last whole event, where its server has ended the stream itself."""
        held, self._held = self._held, b""
        return held

    def note(self, passed: bytes) -> None:
        """The client has this."""
        if self._path.startswith("/v1/responses") and (found := NUMBER.findall(passed)):
            self._number = int(found[-1])
        if self._path.startswith("/v1/audio"):
            self._has_chunks |= CHUNK in passed

    def error(self) -> bytes:
        """The event that says so; nothing where none can stand there."""
        body = {"message": MESSAGE, "type": KIND, "param": None, "code": CODE}
        if not self._between:
            return b""
        if self._path in COHERE:
            return self._cohere(COHERE[self._path])
        if self._between == b"\n":
            return encode({"error": MESSAGE}) + b"\n"
        if self._path.startswith("/v1/responses"):
            told = {"type": "error", "code": CODE, "message": MESSAGE, "param": None}
            return _event("error", {**told, "sequence_number": self._number + 1})
        if self._path.startswith("/v1/messages"):
            return _event("error", {"type": "error", "error": {"type": "api_error", "message": MESSAGE}})
        if self._path in TGI:
            return _event(None, {"error": MESSAGE, "error_type": "generation"})
        if self._path.startswith("/v1/audio") and not self._has_chunks:
            return _event(None, {"type": "error", "error": body})
        return _event(None, {"error": body}) + (MARK if self._has_chunks else self._mark)

    def _cohere(self, version: int) -> bytes:
        """As that version's answers fail, in events or lines; of the second the stream is closed behind it."""
        if version == 1:
            ended: dict[str, object] = {"is_finished": True, "event_type": "stream-end", **COHERE_ERROR}
            return encode(ended) + b"\n" if self._between == b"\n" else _event("stream-end", ended)
        fields = {"delta": COHERE_ERROR}
        if self._between == b"\n":
            end = "message-end"
            return encode({"type": end, "event": end, "data": fields, **fields}) + b"\n"
        return _event("message-end", {"type": "message-end", **fields}) + MARK


def _event(name: str | None, body: object) -> bytes:
    head = b"" if name is None else b"event: %s\n" % name.encode()
    return b"%sdata: %s\n\n" % (head, encode(body))
