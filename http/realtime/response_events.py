"""The events of a response: its items, and their texts as they come.

Whoever goes on with one that another process has begun says first what that has said (`skip`): all ids derive from the
response's key.
"""

from __future__ import annotations

from collections.abc import Iterable

from ..errors import ApiError
from ..generation.choice import Choice
from ..generation.job import Job
from ..openai.responses.answers import INCOMPLETE
from ..openai.responses.items import Item, OutputItems
from ..output.events import Piece, ReasoningText
from .fields import TEXT, Object
from .session import Active, Session

CANCELLED, FAILED = "cancelled", "failed"
BY_CLIENT, BY_TURN = "client_cancelled", "turn_detected"  # why it is cancelled


class ResponseWriter:
    """Pieces in, events out."""

    def __init__(self, session: Session, active: Active) -> None:
        self._active, self._conversation = active, None if active.apart else f"conv_{session.id.removeprefix('sess_')}"
        self._limit = active.body.get("max_output_tokens", "inf")
        self._before = session.last_id
        self._output = OutputItems(active.key)
        self._closed = 0  # items that are whole
        self._status = "in_progress"

    # --- what is told ------------------------------------------------------------------------------------------------

    def first(self) -> list[Object]:
        """What stands before all items."""
        return [{"type": "response.created", "response": self._response("in_progress", [])}]

    def take(self, choice: Choice) -> list[Object]:
        """What is new."""
        news = choice.take()
        for piece in news.skipped:
            self._events(piece)
        return [event for piece in news.pieces for event in self._events(piece)]

    def state(self, choice: Choice) -> int:
        return choice.state

    def last(self, job: Job, error: ApiError | None = None, cancelled: str = "") -> list[Object]:
        """The end, for whatever reason."""
        (choice,) = job.choices
        events = self.take(choice)
        reason = choice.finish_reason or ""
        status, details = _status(reason, error, cancelled)
        if self._output.open is not None and self._closed < len(self._output.items):
            events += self._close(self._output.open, "completed" if status == "completed" else "incomplete")
        self._status = status
        done = self._response(status, self.items(), details, _usage(job))
        return [*events, {"type": "response.done", "response": done}]

    def items(self) -> list[Object]:
        """All of them, as they stand in the conversation once the response has ended."""
        last = self._output.open
        end = "completed" if self._status == "completed" else "incomplete"
        return [_object(item, end if item is last else "completed") for item in self._output.items]

    # --- one item ----------------------------------------------------------------------------------------------------

    def _events(self, piece: Piece) -> list[Object]:
        if isinstance(piece, ReasoningText):  # clients of this API are told no thinking
            return []
        before = self._output.open
        item = self._output.add(piece)
        if item is None:
            return []
        events: list[Object] = []
        if item is not before:
            if before is not None:
                events += self._close(before, "completed")
            events += self._begin(item)
        if self._output.said and getattr(piece, "text", ""):
            kind = "response.function_call_arguments.delta" if item.is_call else "response.output_text.delta"
            events.append(self._of(kind, item, delta=self._output.said))
        return events

    def _begin(self, item: Item) -> list[Object]:
        added = _object(item, "in_progress", begun=True)
        events = [self._item("response.output_item.added", item, added)]
        if not self._active.apart:
            events.append(self._in_conversation("conversation.item.added", item, added))
        if not item.is_call:
            events.append(self._of("response.content_part.added", item, part={"type": "text", "text": ""}))
        return events

    def _close(self, item: Item, status: str) -> list[Object]:
        self._closed = item.index + 1
        if item.is_call:
            name = "response.function_call_arguments.done"
            events = [self._of(name, item, name=item.name, arguments=item.text)]
        else:
            events = [
                self._of("response.output_text.done", item, text=item.text),
                self._of("response.content_part.done", item, part={"type": "text", "text": item.text}),
            ]
        whole = _object(item, status)
        if not self._active.apart:
            events.append(self._in_conversation("conversation.item.done", item, whole))
        return [*events, self._item("response.output_item.done", item, whole)]

    def _in_conversation(self, kind: str, item: Item, whole: Object) -> Object:
        before = self._output.items[item.index - 1].id if item.index else self._before
        return {"type": kind, "previous_item_id": before, "item": whole}

    def _item(self, kind: str, item: Item, whole: Object) -> Object:
        return {"type": kind, "response_id": self.id, "output_index": item.index, "item": whole}

    def _of(self, kind: str, item: Item, **fields: object) -> Object:
        place: Object = {"response_id": self.id, "item_id": item.id, "output_index": item.index}
        place |= {"call_id": item.call_id} if item.is_call else {"content_index": 0}
        return {"type": kind, **place, **fields}

    # --- the response ------------------------------------------------------------------------------------------------

    @property
    def id(self) -> str:
        return self._active.id

    def _response(
        self, status: str, output: list[Object], details: Object | None = None, usage: Object | None = None
    ) -> Object:
        return {
            "id": self.id,
            "object": "realtime.response",
            "status": status,
            "status_details": details,
            "output": output,
            "conversation_id": self._conversation,
            "output_modalities": TEXT,
            "max_output_tokens": self._limit,
            "metadata": self._active.metadata,
            "usage": usage,
        }


def _status(reason: str, error: ApiError | None, cancelled: str) -> tuple[str, Object | None]:
    """(status, status_details)."""
    if cancelled or reason == "abort":
        return CANCELLED, {"type": CANCELLED, "reason": cancelled or BY_CLIENT}
    if error is not None:
        body: Object = error.body()["error"]  # type: ignore[assignment]
        problem = {"type": body["type"], "code": body["code"], "message": error.message}
        return FAILED, {"type": FAILED, "error": problem}
    if reason in INCOMPLETE:
        return "incomplete", {"type": "incomplete", "reason": INCOMPLETE[reason]}
    return "completed", None


def _object(item: Item, status: str, begun: bool = False) -> Object:
    """As a realtime item."""
    head = {"id": item.id, "object": "realtime.item", "type": item.kind, "status": status}
    text = "" if begun else item.text
    if item.is_call:
        return head | {"name": item.name, "call_id": item.call_id, "arguments": text}
    parts: Iterable[Object] = () if begun else ({"type": "output_text", "text": text},)
    return head | {"role": "assistant", "content": list(parts)}


def _usage(job: Job) -> Object:
    cached = job.cached_tokens
    return {
        "total_tokens": job.prompt_tokens + job.completion_tokens,
        "input_tokens": job.prompt_tokens,
        "output_tokens": job.completion_tokens,
        "input_token_details": {
            "text_tokens": job.prompt_tokens,
            "audio_tokens": 0,
            "image_tokens": 0,
            "cached_tokens": cached,
            "cached_tokens_details": {"text_tokens": cached, "audio_tokens": 0, "image_tokens": 0},
        },
        "output_token_details": {"text_tokens": job.completion_tokens, "audio_tokens": 0},
    }
