"""Items of a conversation to chat messages. What a model said in one turn, of however many items, is one message."""

from __future__ import annotations

from typing import Any

from ...errors import bad_request
from ...generation.adapter import checked
from .compaction import COMPACTION, TRIGGER, summary_message
from .encrypted import decrypted
from .schemas import (
    CompactionItem,
    CustomCallItem,
    FunctionCallItem,
    FunctionCallOutputItem,
    ItemPart,
    McpApprovalRequestItem,
    McpApprovalResponseItem,
    McpCallItem,
    MessageItem,
    Object,
    ReasoningItem,
)
from .tools.custom import arguments_of
from .tools.namespaces import joined

MEDIA_PARTS = ("input_image", "input_audio")
MEDIA_FIELDS = ("image_url", "input_audio", "file_id", "detail")
CONTENT = "{}.encrypted_content"
DENIED = "The user has not approved this call."
REMAINING = ("user", "system", "developer")  # whose messages a summary leaves
TEXT_PARTS = ("input_text", "output_text", "text", "summary_text", "reasoning_text")


def messages_of(items: list[tuple[str, Object]]) -> list[Object]:
    """The messages of items, each with its path in the request."""
    turns = MessageBuilder()
    requests: dict[str, McpApprovalRequestItem] = {}
    for path, item in items:
        kind = item.get("type") or ("message" if "role" in item else None)
        match kind:
            case "message":
                _message(turns, checked(MessageItem, item, path), path)
            case "reasoning":
                turns.think(_reasoning(checked(ReasoningItem, item, path), path))
            case "function_call":
                turns.call(checked(FunctionCallItem, item, path))
            case "custom_tool_call":
                custom = checked(CustomCallItem, item, path)
                turns.call(FunctionCallItem(custom.call_id, custom.name, arguments_of(custom.input), custom.namespace))
            case "function_call_output" | "custom_tool_call_output":
                output = checked(FunctionCallOutputItem, item, path)
                content = content_of(output.output, f"{path}.output")
                turns.say({"role": "tool", "tool_call_id": output.call_id, "content": content})
            case "mcp_call":
                turns.called(checked(McpCallItem, item, path))
            case "mcp_list_tools":
                pass  # what the model may call is offered to it anew
            case "mcp_approval_request":
                asked = checked(McpApprovalRequestItem, item, path)
                requests[asked.id] = asked
            case "mcp_approval_response":
                _answered(turns, checked(McpApprovalResponseItem, item, path), requests, path)
            case "compaction":
                sealed = checked(CompactionItem, item, path).encrypted_content
                turns.compact(summary_message(decrypted(COMPACTION, sealed, CONTENT.format(path))))
            case "compaction_trigger":
                raise bad_request(f"{path}: {TRIGGER} must be the last item.", f"{path}.type")
            case None:
                raise bad_request(f"{path}.type is missing.", f"{path}.type")
            case _:
                raise bad_request(f"{path}: items of type {kind!r} are not supported.", f"{path}.type")
    return turns.joined()


def _answered(
    turns: MessageBuilder, answer: McpApprovalResponseItem, requests: dict[str, McpApprovalRequestItem], path: str
) -> None:
    """A call that the client wants is made, and stands behind as an item of its own."""
    asked = requests.get(answer.approval_request_id)
    if asked is None:
        field = f"{path}.approval_request_id"
        raise bad_request(f"{field}: there is no such mcp_approval_request before it.", field)
    if not answer.approve:
        text = DENIED + (f" They say: {answer.reason}" if answer.reason else "")
        turns.called(McpCallItem(asked.id, asked.name, asked.arguments, error=text))


def _message(turns: MessageBuilder, message: MessageItem, path: str) -> None:
    content = content_of(message.content, f"{path}.content")
    if message.role == "assistant":
        turns.answer(content)
    else:
        turns.say({"role": message.role, "content": content})


def content_of(content: str | list[ItemPart], path: str) -> str | list[Object]:
    """A string, or several parts, as chat messages have them."""
    if isinstance(content, str):
        return content
    parts = [_part(part, f"{path}[{index}]") for index, part in enumerate(content)]
    if len(parts) < 2 and all("text" in part for part in parts):
        return "".join(part["text"] for part in parts)
    return parts


def _part(part: ItemPart, path: str) -> Object:
    """As a chat's messages have it; what is no text is looked at there."""
    if part.type not in MEDIA_PARTS:
        return {"type": "text", "text": _text(part, path)}
    given = {name: value for name in MEDIA_FIELDS if (value := getattr(part, name)) is not None}
    return {"type": part.type, **given, "place": path}


def _text(part: ItemPart, path: str) -> str:
    if part.type == "refusal":
        text, name = part.refusal, "refusal"
    elif part.type in TEXT_PARTS:
        text, name = part.text, "text"
    else:
        raise bad_request(f"{path}: this model takes text only, not a part of type {part.type!r}.", path)
    if text is None:
        raise bad_request(f"{path}.{name} is missing.", f"{path}.{name}")
    return text


def _error_text(error: str | Object | None) -> str:
    """Of a call, in the client's form: parts of text, a message, or a text as it is."""
    if not isinstance(error, dict):
        return error or ""
    content = error.get("content")
    parts = content if isinstance(content, list) else [content]
    texts = [part["text"] for part in parts if isinstance(part, dict) and isinstance(part.get("text"), str)]
    return "\n".join(texts) or str(error.get("message") or content or "")


def _reasoning(item: ReasoningItem, path: str) -> str:
    """The thinking itself, as the client keeps it or says it, else its summary."""
    if item.encrypted_content is not None:
        return decrypted("reasoning", item.encrypted_content, CONTENT.format(path))
    name, parts = ("content", item.content) if item.content else ("summary", item.summary or [])
    return "\n\n".join(_text(part, f"{path}.{name}[{index}]") for index, part in enumerate(parts))


class MessageBuilder:
    """Messages as they are put together; the last may be an assistant's that goes on."""

    def __init__(self) -> None:
        self.messages: list[Object] = []  # thinking as a list, until all are there
        self._open: Object | None = None
        self._compacted = 0  # so many of the first messages are what summaries have left

    def joined(self) -> list[Object]:
        """All of them."""
        for message in self.messages:
            if "reasoning_content" in message:
                message["reasoning_content"] = "\n\n".join(message["reasoning_content"])
        return self.messages

    def called(self, call: McpCallItem) -> None:
        """A call that was made here, and what has come of it. Items do not tell which calls are of one turn."""
        self.call(FunctionCallItem(call.id, call.name, call.arguments))
        content = _error_text(call.error) if call.output is None else call.output
        self.say({"role": "tool", "tool_call_id": call.id, "content": content})

    def say(self, message: Object) -> None:
        """A message of somebody else than the assistant."""
        self.messages.append(message)
        self._open = None

    def compact(self, summary: Object) -> None:
        """Of what was said before, the user's words and a summary remain."""
        later = self.messages[self._compacted :]
        self.messages[self._compacted :] = [message for message in later if message["role"] in REMAINING]
        self.say(summary)
        self._compacted = len(self.messages)

    def think(self, text: str) -> None:
        """Thinking comes before the text of a turn, and before each call."""
        if not text:
            return
        calls = self._open is not None and "tool_calls" in self._open
        self._assistant(*(() if calls else ("content",))).setdefault("reasoning_content", []).append(text)

    def answer(self, content: Any) -> None:
        """Text may stand behind calls that have no results yet; two texts are two turns."""
        self._assistant("content")["content"] = content

    def call(self, call: FunctionCallItem) -> None:
        function = {"name": joined(call.namespace, call.name), "arguments": call.arguments}
        calls = self._assistant().setdefault("tool_calls", [])
        calls.append({"id": call.call_id, "type": "function", "function": function})

    def _assistant(self, *but: str) -> Object:
        """The open turn if it has none of these fields, else a new one."""
        if self._open is None or any(name in self._open for name in but):
            self._open = {"role": "assistant"}
            self.messages.append(self._open)
        return self._open
