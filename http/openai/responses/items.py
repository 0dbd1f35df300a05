"""What a model said, as the items of a response: reasoning, messages and calls, in the order in which they came.

All ids derive from the answer's key and the item's place, so that another process that goes on with an answer gives the
same ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

from actorserve.actors.protocol.messages import TokenLogprobs

from ...output.events import Arguments, CallStart, Content, Piece, ReasoningText
from .encrypted import encrypted
from .logprobs import TextTokens, logprobs_of
from .schemas import Object
from .tools.custom import Customs, InputText
from .tools.namespaces import NamespacedTool

Kind = Literal[
    "reasoning",
    "message",
    "compaction",
    "function_call",
    "custom_tool_call",
    "mcp_call",
    "mcp_approval_request",
    "mcp_list_tools",
]
PREFIXES: dict[Kind, str] = {
    "reasoning": "rs",
    "message": "msg",
    "function_call": "fc",
    "custom_tool_call": "ctc",
    "mcp_call": "mcp",
    "mcp_approval_request": "mcpr",
    "mcp_list_tools": "mcpl",
    "compaction": "cmp",
}
CALLS = ("function_call", "custom_tool_call", "mcp_call", "mcp_approval_request")
NO_CUSTOMS = Customs()
WITH_PARTS = ("reasoning", "message")
EXECUTION_ERROR = "mcp_tool_execution_error"  # as clients know it, of what a call had for a result


@dataclass(frozen=True)
class ResponseOptions:
    """What a client wants of its response beside the text."""

    padded: bool = False  # the length of a delta's event does not tell that of its text
    encrypted: bool = False  # thinking comes in a form that is sent back, too
    compacts: bool = False  # what is said is a summary, in the place of what was said before


PLAIN = ResponseOptions()


@dataclass
class Item:
    """One item of the output."""

    kind: Kind
    key: str
    index: int  # in the output
    name: str = ""
    namespace: str = ""  # of the tool that is called, if it is in one
    call_id: str = ""
    texts: list[str] = field(default_factory=list)  # as they came
    tokens: list[TokenLogprobs] = field(default_factory=list)  # its tokens, where logprobs are wanted
    input: InputText | None = None  # reads the arguments of a custom tool's call
    summarised: bool = False  # its client reads thinking in its summary
    encrypted: bool = False  # and keeps it in a form of its own

    @property
    def is_call(self) -> bool:
        return self.kind in CALLS

    @property
    def text(self) -> str:
        """What it says; of a call, its arguments or its input."""
        return "".join(self.texts)

    @property
    def id(self) -> str:
        return f"{PREFIXES[self.kind]}_{self.key}{self.index:04x}"

    def object(self, status: str, begun: bool = False) -> Object:
        """Its JSON object; of an item that has only begun without what is in it."""
        head: Object = {"id": self.id, "type": self.kind, "status": status}
        parts = [] if begun else [self.part()]
        match self.kind:
            case "reasoning":
                summary, content = (parts, []) if self.summarised else ([], parts)
                kept = encrypted("reasoning", self.text) if self.encrypted and not begun else None
                return head | {"summary": summary, "content": content, "encrypted_content": kept}
            case "compaction":
                text = "" if begun else encrypted("compaction", self.text)
                return {"id": self.id, "type": self.kind, "encrypted_content": text}
            case "message":
                return head | {"role": "assistant", "content": parts}
        named = {"namespace": self.namespace} if self.namespace else {}
        given = "input" if self.kind == "custom_tool_call" else "arguments"
        return head | named | {"call_id": self.call_id, "name": self.name, given: "" if begun else self.text}

    def part(self, begun: bool = False) -> Object:
        """Its one content part."""
        text = "" if begun else self.text
        if self.kind == "reasoning":
            return {"type": "summary_text" if self.summarised else "reasoning_text", "text": text}
        logprobs = [] if begun else self.logprobs
        return {"type": "output_text", "text": text, "annotations": [], "logprobs": logprobs}

    @property
    def logprobs(self) -> list[Object]:
        """Of a message's tokens."""
        return logprobs_of(self.tokens)


@dataclass
class McpItem(Item):
    """A call of an MCP server's tool, made here or to be approved; or the tools of such a server."""

    server_label: str = ""
    approval_request_id: str | None = None
    output: str | None = None
    error: str | None = None
    status: str = "in_progress"
    tools: list[Object] = field(default_factory=list)

    def object(self, status: str, begun: bool = False) -> Object:
        head: Object = {"id": self.id, "type": self.kind, "server_label": self.server_label}
        if self.kind == "mcp_list_tools":
            return head | {"tools": [] if begun else self.tools, "error": self.error}
        called = head | {"name": self.name, "arguments": "" if begun else self.text}
        if self.kind == "mcp_approval_request":
            return called
        error = self.error and {"type": EXECUTION_ERROR, "content": [{"type": "text", "text": self.error}]}
        of_call = {"approval_request_id": self.approval_request_id, "output": self.output, "error": error}
        return called | of_call | {"status": self.status}


class OutputItems:
    """Items as they grow: the last one is open."""

    def __init__(
        self,
        key: str,
        pieces: Iterable[Piece] = (),
        tokens: Iterable[TokenLogprobs] = (),
        names: Mapping[str, NamespacedTool] | None = None,
        customs: Customs = NO_CUSTOMS,
        summarised: bool = False,
        wants: ResponseOptions = PLAIN,
    ) -> None:
        """`names`: of tools that the model was offered under other names than the client's. `summarised`: thinking is
        told as the summary that was asked for, which nobody else makes.
        """
        self.key = key
        self._names = names or {}
        self._customs = customs
        self._summarised, self._wants = summarised, wants
        self.compacts = wants.compacts  # is what is said now a summary?
        self.mcp: Mapping[str, tuple[str, bool]] = {}  # by name: the server's label, and whether a call needs approval
        self.items: list[Item] = []
        self.last_tokens: list[TokenLogprobs] = []  # the tokens of what was added last
        self.said = ""  # the text of what was added last, as the client is given it
        self._tokens = TextTokens()
        self._calls: list[Item] = []
        self.add_tokens(tokens)
        for piece in pieces:
            self.add(piece)

    @property
    def open(self) -> Item | None:
        return self.items[-1] if self.items else None

    def add_tokens(self, tokens: Iterable[TokenLogprobs]) -> None:
        """The tokens of what will be added, where logprobs are wanted."""
        self._tokens.add_tokens(tokens)

    def next_turn(self) -> None:
        """What follows is another answer of the model: its calls are counted anew, and its tokens are others."""
        self._calls, self._tokens = [], TextTokens()

    def add_mcp(self, kind: Kind, label: str, name: str = "", arguments: str = "") -> McpItem:
        """An item that is no text of the model."""
        item = McpItem(kind, self.key, len(self.items), name, texts=[arguments], server_label=label)
        self.items.append(item)
        return item

    def add(self, piece: Piece) -> Item | None:
        """The item that the piece belongs to, which may be new; None where it says nothing."""
        if isinstance(piece, CallStart):
            return self._call(piece)
        if not piece.text or (self.compacts and isinstance(piece, ReasoningText)):
            return None
        item = self._current(piece)
        self.said = piece.text if item.input is None else item.input.feed(piece.text)
        item.texts.append(self.said)
        self.last_tokens = self._tokens.take(piece.text)
        item.tokens += self.last_tokens
        return item

    def _current(self, piece: Content | ReasoningText | Arguments) -> Item:
        if isinstance(piece, Arguments):
            if not self._calls or self._calls[-1] is not self.open or len(self._calls) - 1 != piece.index:
                raise ValueError(f"arguments of call {piece.index} after something else had begun")
            return self._calls[-1]
        text: Kind = "compaction" if self.compacts else "message"
        kind: Kind = text if isinstance(piece, Content) else "reasoning"
        if self._customs.forced is not None and kind == "message":
            return self.open if self.open is not None and self.open.is_call else self._called(self._customs.forced)
        return self.open if self.open is not None and self.open.kind == kind else self._new(kind)

    def _call(self, piece: CallStart) -> Item:
        item = self._called(piece.name, piece.id)
        if item.kind == "custom_tool_call":
            item.input = InputText()
        return item

    def _called(self, name: str, own_id: str | None = None) -> Item:
        if name in self.mcp:
            label, needs_approval = self.mcp[name]
            called = self.add_mcp("mcp_approval_request" if needs_approval else "mcp_call", label, name)
            self._calls.append(called)
            return called
        item = self._new("custom_tool_call" if name in self._customs.names else "function_call")
        item.namespace, item.name = self._names.get(name, ("", name))
        taken = {call.call_id for call in self._calls}
        item.call_id = own_id if own_id and own_id not in taken else f"call_{self.key}{item.index:04x}"
        self._calls.append(item)
        return item

    def _new(self, kind: Kind) -> Item:
        item = Item(kind, self.key, len(self.items))
        if kind == "reasoning":
            item.summarised, item.encrypted = self._summarised, self._wants.encrypted
        self.items.append(item)
        return item

    def objects(self, status: str) -> list[Object]:
        """All items' JSON objects; `status` is the open one's."""
        return [item.object(status if item is self.open else "completed") for item in self.items]
