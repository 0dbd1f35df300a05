"""One realtime session: what its client has set, the conversation, and what is being answered.

All of it that must survive the process that serves it is in the struct, which can be written down and read again.
"""

from __future__ import annotations

import secrets
from typing import Any, Literal

import msgspec

from ..errors import ApiError, bad_request
from .fields import PCM, RATES, TEXT, Object, ResponseFields, SessionFields, check_asked, check_audio
from .turns import BufferStart, TurnDetection, read_turn_detection

Kind = Literal["realtime", "transcription"]
REALTIME: Kind = "realtime"
TRANSCRIPTION: Kind = "transcription"
MOST_STATE = 1 << 20  # bytes of a session as it is written down: of its conversation, above all
MOST_ITEMS = 4096


class Active(msgspec.Struct, kw_only=True):
    """What is being generated for a session."""

    id: str  # of the response, or of the item whose sound is written down
    seed: int
    created: int  # Unix seconds
    refs: list[int] = []
    body: Object = {}  # of a response: the Responses request that it is
    metadata: dict[str, str] | None = None
    apart: bool = False  # it goes into no conversation
    seconds: float = 0.0  # of a sound
    windows: int = 0  # of a sound: each is a sequence
    sound_from: int | None = None  # of a sound that may be wanted again: where in what the client has sent
    final: bool = True

    @property
    def key(self) -> str:
        """Of which its items' ids are made."""
        return f"{self.seed:016x}{self.created:08x}"


class Session(msgspec.Struct, kw_only=True):
    """A client's session."""

    id: str
    kind: Kind
    model: str
    created: int  # Unix seconds
    beta: bool = False  # events have their older names
    plain: bool = False  # events are vLLM's, which is of sounds that are written down
    instructions: str = ""
    tools: list[Object] = []
    tool_choice: str | Object = "auto"
    max_output_tokens: int | Literal["inf"] = "inf"
    temperature: float | None = None
    effort: str | None = None
    parallel: bool | None = None
    truncation: str = "auto"
    rate: int = RATES[0]
    language: str | None = None
    before: str | None = None  # `prompt` of a transcription
    items: list[Object] = []
    active: Active | None = None
    turns: TurnDetection | None = None  # None: the client commits
    # of its sounds, as the buffer was when this was written down
    heard: BufferStart = msgspec.field(default_factory=BufferStart)
    committed: int = -1  # the last commit that was not refused ends there in what the client has sent; -1: unknown
    emptied: int = -1  # the buffer was last emptied there, since the server held too many sounds
    made: int = 0  # ids
    answers: int = 0  # that were begun

    def new_item_id(self) -> str:
        self.made += 1
        return f"item_{self.id.rpartition('_')[2]}{self.made:06x}"

    # --- what is set -------------------------------------------------------------------------------------------------

    def update(self, given: SessionFields) -> None:
        """What the client sets; nothing changes where something of it cannot be."""
        path = "session"
        if given.type is not None and given.type != self.kind:
            raise bad_request(f"session.type: this session is of type {self.kind}.", "session.type")
        check_asked(given, path)
        if given.tracing not in (None, "auto"):
            raise bad_request("session.tracing is not supported.", "session.tracing")
        if given.include:
            raise bad_request("session.include is not supported.", "session.include")
        if given.truncation not in (None, "auto", "disabled"):
            raise bad_request('session.truncation must be "auto" or "disabled".', "session.truncation")
        rate = check_audio(given.audio, "session.audio") if given.audio is not None else None
        heard = given.audio.input if given.audio is not None else None
        if heard is not None and heard.turn_detection is not msgspec.UNSET:
            self.turns = read_turn_detection(heard.turn_detection, "session.audio.input")
        self._update_transcription(given)
        self.rate = rate or self.rate
        self._update_answers(given)

    def _update_transcription(self, given: SessionFields) -> None:
        wanted = given.audio.input.transcription if given.audio and given.audio.input else msgspec.UNSET
        if wanted is msgspec.UNSET:
            return
        name = "session.audio.input.transcription"
        if self.kind == REALTIME and wanted is not None:
            text = (
                "this model hears sounds, and writes none down; a server of a Whisper does, with intent=transcription"
            )
            raise bad_request(f"{name}: {text}.", name)
        if self.kind == TRANSCRIPTION and wanted is None:
            raise bad_request(f"{name} must not be null in a session that is a transcription.", name)
        if wanted is not None:
            self.language, self.before = wanted.language, wanted.prompt

    def _update_answers(self, given: SessionFields) -> None:
        for name in ("instructions", "tools", "tool_choice", "max_output_tokens", "temperature", "truncation"):
            if (value := getattr(given, name)) is not None:
                setattr(self, name, value)
        if given.reasoning is not None:
            self.effort = given.reasoning.effort
        if given.parallel_tool_calls is not None:
            self.parallel = given.parallel_tool_calls

    def named(self) -> Object:
        """vLLM's clients read these beside the session."""
        return {"id": self.id, "created": self.created}

    def told(self) -> Object:
        """`session` of session.created and session.updated."""
        turns = None if self.turns is None else msgspec.structs.asdict(self.turns)
        heard: Object = {"format": {"type": PCM, "rate": self.rate}, "noise_reduction": None, "turn_detection": turns}
        if self.kind == TRANSCRIPTION:
            heard["transcription"] = {"model": self.model, "language": self.language, "prompt": self.before}
            head = {"id": self.id, "object": "realtime.transcription_session", "type": self.kind, "expires_at": 0}
            return head | {"audio": {"input": heard}, "include": None}
        head = {"id": self.id, "object": "realtime.session", "type": self.kind, "model": self.model}
        answers: Object = {
            "output_modalities": TEXT,
            "instructions": self.instructions,
            "tools": self.tools,
            "tool_choice": self.tool_choice,
            "max_output_tokens": self.max_output_tokens,
            "truncation": self.truncation,
            "tracing": None,
            "prompt": None,
            "expires_at": 0,
            "include": None,
        }
        return head | answers | {"audio": {"input": {**heard, "transcription": None}}}

    # --- the conversation --------------------------------------------------------------------------------------------

    def place_of(self, item_id: str, field: str = "item_id") -> int:
        """Where this item stands; 404 where there is none."""
        for at, item in enumerate(self.items):
            if item["id"] == item_id:
                return at
        raise ApiError(404, f"{field}: there is no item {item_id:.64} in this conversation.", field, "item_not_found")

    def insert(self, item: Object, behind: str | None) -> str | None:
        """Add an item behind another (`root`: before all; None: at the end); the id of that other one."""
        if len(self.items) >= MOST_ITEMS:
            raise ApiError(400, f"A conversation has at most {MOST_ITEMS} items.", "item", "conversation_full")
        if any(one["id"] == item["id"] for one in self.items):
            raise bad_request(f"item.id: there is an item {item['id']:.64} already.", "item.id")
        if behind == "root":
            at = 0
        else:
            at = len(self.items) if behind is None else self.place_of(behind, "previous_item_id") + 1
        self.items.insert(at, item)
        return self.items[at - 1]["id"] if at else None

    @property
    def last_id(self) -> str | None:
        return self.items[-1]["id"] if self.items else None

    # --- a response --------------------------------------------------------------------------------------------------

    def body_of(self, given: ResponseFields, items: list[Object]) -> Object:
        """The Responses request that answers these items."""

        def value(name: str) -> Any:
            own = getattr(given, name)
            return getattr(self, name) if own is None else own

        body: Object = {"model": self.model, "input": items, "store": False, "stream": True}
        limit = value("max_output_tokens")
        effort = given.reasoning.effort if given.reasoning is not None else self.effort
        parallel = given.parallel_tool_calls if given.parallel_tool_calls is not None else self.parallel
        asked = {
            "instructions": value("instructions") or None,
            "tools": value("tools") or None,
            "tool_choice": value("tool_choice") if value("tools") else None,
            "max_output_tokens": None if limit == "inf" else limit,
            "temperature": value("temperature"),
            "reasoning": {"effort": effort} if effort else None,
            "parallel_tool_calls": parallel,
            "truncation": self.truncation,
        }
        return body | {name: one for name, one in asked.items() if one is not None}


def new_session(kind: Kind, model: str, created: int, beta: bool) -> Session:
    """One that has just begun."""
    name = f"sess_{secrets.token_hex(8)}"
    return Session(id=name, kind=kind, model=model, created=created, beta=beta, committed=0)


def check_response(given: ResponseFields) -> None:
    """400 for what is not here."""
    check_asked(given, "response")
    if given.conversation not in (None, "auto", "none"):
        raise bad_request('response.conversation must be "auto" or "none".', "response.conversation")
    if given.audio:
        raise bad_request("response.audio is not supported: this server answers in texts only.", "response.audio")


__all__ = ["REALTIME", "TRANSCRIPTION", "Active", "Session", "check_response", "new_session"]
