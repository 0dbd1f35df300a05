"""The events of a streamed response. A writer can go on where another process' writer stopped: see `skip`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from actorserve.actors.protocol.messages import TokenLogprobs

from ...errors import ApiError
from ...output.answer import padding
from ...output.events import CallStart, Piece
from .answers import ResponseAnswer, item_status, status_of
from .items import WITH_PARTS, Item, McpItem
from .logprobs import logprobs_of
from .schemas import Object

encode = msgspec.json.Encoder().encode
DELTAS = {
    "message": "response.output_text.delta",
    "reasoning": "response.reasoning_text.delta",
    "function_call": "response.function_call_arguments.delta",
    "custom_tool_call": "response.custom_tool_call_input.delta",
    "mcp_call": "response.mcp_call_arguments.delta",
}
THINKING, SUMMARY = "response.reasoning_text", "response.reasoning_summary_text"
PART, SUMMARY_PART = "response.content_part", "response.reasoning_summary_part"
ENDS = {"completed": "response.completed", "incomplete": "response.incomplete", "cancelled": "response.incomplete"}


class ResponseEvents:
    """Pieces in, server-sent events out."""

    def __init__(self, answer: ResponseAnswer) -> None:
        self.answer = answer
        self.sequence = 0  # the next event's number
        self._closed = 0  # so many of the first items are of turns before this one
        self.ended: Object | None = None  # the response object, once all is written
        self.output = self._output = answer.output()

    def first(self) -> bytes:
        """What stands before all output."""
        begun = self.answer.response("in_progress")
        return self._event("response.created", response=begun) + self._event("response.in_progress", response=begun)

    def add_tokens(self, tokens: Iterable[TokenLogprobs]) -> None:
        """The tokens of the pieces that come next, where logprobs are wanted."""
        self._output.add_tokens(tokens)

    def skip(self, pieces: Iterable[Piece]) -> None:
        """Another writer has written these (and the first events). Its number of events is for `sequence`."""
        for piece in pieces:
            self._output.add(piece)

    def pieces(self, pieces: Iterable[Piece]) -> bytes:
        """More output."""
        return b"".join(event for piece in pieces for event in self._add(piece))

    def last(self, pieces: Iterable[Piece], finish_reason: str, usage: Object, completed_at: int) -> bytes:
        """The last of the output, and the end. `usage` is the chat answer's."""
        events = [self.pieces(pieces)]
        if self._output.open is not None and self._output.open.index >= self._closed:
            events += self._close(self._output.open, item_status(finish_reason))
        ended = self.ended = self.answer.ended(self._output, finish_reason, usage, completed_at)
        events.append(self._event(ENDS[status_of(finish_reason)], response=ended))
        return b"".join(events)

    def close_turn(self, status: str) -> bytes:
        """The model's answer has ended, and the response goes on. Calls that are made here stay open."""
        item, self._closed = self._output.open, len(self._output.items)
        self._output.next_turn()
        return b"" if item is None else b"".join(self._close(item, status))

    def listed(self, label: str, tools: list[Object]) -> bytes:
        """The tools of an MCP server are known."""
        item = self._output.add_mcp("mcp_list_tools", label)
        events = [self._event("response.output_item.added", output_index=item.index, item=item.object("", begun=True))]
        events.append(self._of("response.mcp_list_tools.in_progress", item))
        item.tools = tools
        events.append(self._of("response.mcp_list_tools.completed", item))
        events.append(self._event("response.output_item.done", output_index=item.index, item=item.object("")))
        self._closed = len(self._output.items)
        return b"".join(events)

    def approved(self, label: str, name: str, arguments: str, request_id: str) -> tuple[McpItem, bytes]:
        """A call that the client was asked about begins."""
        item = self._output.add_mcp("mcp_call", label, name, arguments)
        item.approval_request_id = request_id
        events = [*self._begin(item), self._of(DELTAS["mcp_call"], item, delta=arguments), *self._close(item, "")]
        self._closed = len(self._output.items)
        return item, b"".join(events)

    def called(self, item: McpItem, output: str, error: str, status: str) -> bytes:
        """What has come of a call that was made here."""
        item.output, item.error, item.status = (None, error, status) if error else (output, None, status)
        ended = "completed" if status == "completed" else "failed"
        said = self._of(f"response.mcp_call.{ended}", item)
        return said + self._event("response.output_item.done", output_index=item.index, item=item.object(status))

    def error(self, error: ApiError) -> bytes:
        """It failed after it had begun."""
        response = self.answer.failed(self._output, error.message, error.status)
        return self._event("response.failed", response=response)

    def snapshot(self) -> Object:
        """The response as it is now."""
        return self.answer.response("in_progress", self._output.objects("in_progress"))

    def _add(self, piece: Piece) -> Iterator[bytes]:
        before = self._output.open
        item = self._output.add(piece)
        if before is not None and before.index < self._closed:
            before = None  # of a turn before this one
        if item is None:
            return
        if item is not before:
            if before is not None:
                yield from self._close(before, "completed")
            yield from self._begin(item)
        if not isinstance(piece, CallStart) and self._output.said and item.kind in DELTAS:
            yield self._delta(item, self._output.said)

    def _begin(self, item: Item) -> Iterator[bytes]:
        added = item.object("in_progress", begun=True)
        yield self._event("response.output_item.added", output_index=item.index, item=added)
        if item.kind == "mcp_call":
            yield self._of("response.mcp_call.in_progress", item)
        if item.kind in WITH_PARTS:
            yield self._of(f"{_part(item)}.added", item, part=item.part(begun=True))

    def _delta(self, item: Item, text: str) -> bytes:
        more: Object = {"logprobs": logprobs_of(self._output.last_tokens)} if item.kind == "message" else {}
        if self.answer.wants.padded:
            more["obfuscation"] = padding(len(encode(text)))
        kind = f"{SUMMARY}.delta" if item.summarised else DELTAS[item.kind]
        return self._of(kind, item, delta=text, **more)

    def _close(self, item: Item, status: str) -> Iterator[bytes]:
        if item.kind == "function_call":
            name = "response.function_call_arguments.done"
            yield self._of(name, item, name=item.name, arguments=item.text)
        elif item.kind == "custom_tool_call":
            yield self._of("response.custom_tool_call_input.done", item, input=item.text)
        elif item.kind == "mcp_call":
            yield self._of("response.mcp_call_arguments.done", item, arguments=item.text)
            return  # it ends with what has come of it
        elif item.kind in WITH_PARTS:
            if item.kind == "message":
                yield self._of("response.output_text.done", item, text=item.text, logprobs=item.logprobs)
            else:
                yield self._of(f"{SUMMARY if item.summarised else THINKING}.done", item, text=item.text)
            yield self._of(f"{_part(item)}.done", item, part=item.part())
        yield self._event("response.output_item.done", output_index=item.index, item=item.object(status))

    def _of(self, kind: str, item: Item, **fields: object) -> bytes:
        """An event inside an item."""
        place: Object = {"item_id": item.id, "output_index": item.index}
        if item.kind in WITH_PARTS:
            place["summary_index" if item.summarised else "content_index"] = 0
        return self._event(kind, **place, **fields)

    def _event(self, kind: str, **fields: object) -> bytes:
        number, self.sequence = self.sequence, self.sequence + 1
        data = encode({"type": kind, "sequence_number": number, **fields})
        return b"event: %s\ndata: %s\n\n" % (kind.encode(), data)


def _part(item: Item) -> str:
    """The name of events on its one part."""
    return SUMMARY_PART if item.summarised else PART
