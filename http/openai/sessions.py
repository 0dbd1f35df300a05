"""Sessions as SGLang has them: a completion goes on from the tokens of an earlier one, of which its client sends none.

A session is kept by the frontend that its id's hash names, in shared memory as responses are, so that a successor has
it; another frontend gives requests for it to that one. Of each turn the tokens of prompt and answer are kept, by the id
of its answer, before the client is told that it has ended. What has not been asked for longest is forgotten first.
"""

from __future__ import annotations

import hashlib
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
from msgspec import Meta

from actorserve.actors.protocol.topics.prompts import Prompt, TextPrompt, TokenPrompt

from ..errors import ApiError, bad_request
from ..generation.idempotency_keys import KEY_BYTES
from ..generation.job import Engine
from ..generation.prepare import PreparedRequest
from .schemas import CompletionRequest, SessionParams

MOST_TURNS = 64  # of a session that can be gone on from
IDLE_S = 3600.0
ID, RID = "session_params.id", "session_params.rid"


class OpenSessionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /open_session."""

    capacity_of_str_len: Annotated[int, Meta(ge=0, le=(1 << 31) - 1)]  # the most tokens of a turn; 0: the model's
    session_id: Annotated[str, Meta(min_length=1, max_length=128)] | None = None  # one is made up if left out
    streaming: bool | None = None  # without `rid` a turn goes on from the last
    timeout: Annotated[float, Meta(gt=0, le=86_400)] | None = None  # seconds without a turn; an hour if left out


class CloseSessionRequest(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """POST /close_session."""

    session_id: Annotated[str, Meta(min_length=1, max_length=128)]


class Session(msgspec.Struct, array_like=True, tag="session"):
    """What is kept of one."""

    id: str
    client: str
    capacity: int
    streaming: bool
    timeout: float
    until: float  # seconds of CLOCK_MONOTONIC
    model: int = -1  # which of the server's it is of, once it has a turn
    turns: dict[str, str] = {}  # the answers' ids, each with that of the turn before, or nothing
    running: dict[str, str] = {}  # the same of turns that have not ended
    forgotten: list[str] = []  # of these, such as another has taken the place of meanwhile


class Turn(msgspec.Struct, array_like=True):
    """What is kept of a turn."""

    prompt: list[int]
    answer: list[int]


@dataclass(frozen=True)
class Continued:
    """A completion of a session: what it is computed behind, and what it becomes a part of."""

    session: str
    client: str
    model: int
    after: str  # the turn before it, or nothing
    replaces: bool  # what stands behind that is forgotten once something of this has come
    asked: PreparedRequest


class Sessions:
    """One frontend's."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        for data in engine.kept_payloads():
            try:
                left = msgspec.msgpack.decode(data, type=Session)
            except msgspec.DecodeError:  # a record of another kind
                continue
            engine.count_session(_key("session", left.id), left.until)

    def owner(self, name: str) -> int:
        """The frontend that keeps the session of this id."""
        if self._engine.alone:
            return self._engine.index
        return int.from_bytes(_key("owner", name)[:8], "little") % self._engine.frontends

    def open(self, body: OpenSessionRequest, name: str, client: str) -> None:
        """400 if there is one of this id."""
        if self._load(name) is not None:
            raise bad_request(f"session_id: {name!r} is open.", "session_id")
        timeout = IDLE_S if body.timeout is None else body.timeout
        self._put(Session(name, client, body.capacity_of_str_len, bool(body.streaming), timeout, 0.0))

    def close(self, name: str, client: str) -> None:
        """404 if it is not open."""
        session = self._find(name, client, "session_id")
        for turn in session.turns:
            self._engine.put(_key("turn", name, turn), b"")
        self._engine.put(_key("session", name), b"")
        self._engine.count_session(_key("session", name), 0.0)

    async def go_on(
        self, body: CompletionRequest, asked: PreparedRequest, client: str, model: int, begun: bool, name: str = ""
    ) -> Continued:
        """The prompt behind what the parameters name. `begun`: the answer is in its slots already. `name`: what its
        client has its answer called.
        """
        params = body.session_params
        assert params is not None, "without them there is no session"
        if begun:
            return self._go_on_again(session_of(body), params, asked, client, model)
        session = self._find(session_of(body), client, ID)
        if session.model not in (-1, model):
            raise bad_request(f"{ID}: the session is of another model.", ID)
        if name and name in (*session.turns, *session.forgotten):  # it would be lost at its end
            text = f"the session has had a turn {name!r:.80}; each needs a name of its own."
            raise bad_request(f"request_id: {text}", "request_id")
        for field in ("use_beam_search", "echo", "suffix"):
            if getattr(body, field):
                raise bad_request(f"{field} does not go with session_params.", field)
        if len(asked.prompts) * len(asked.params) > 1:
            raise bad_request("session_params: a turn has one prompt and one answer (n, best_of).", "session_params")
        after = _turn_before(session, params)
        before: list[int] = []
        if after:
            data = self._engine.get(_key("turn", session.id, after))
            if not data:
                raise bad_request(f"{RID}: the tokens of {after!r:.80} are forgotten.", RID)
            turn = msgspec.msgpack.decode(data, type=Turn)
            before = turn.prompt if params.drop_previous_output else turn.prompt + turn.answer
        if params.offset:
            before = before[: params.offset]
        tokens = before + await self._tokens(asked.prompts[0], not before)
        if session.capacity and len(tokens) > session.capacity:
            text = f"the turn has {len(tokens)} tokens, the session's capacity_of_str_len is {session.capacity}."
            raise bad_request(f"prompt: {text}", "prompt")
        prompts: list[Prompt] = [TokenPrompt(tokens)]
        asked = replace(asked, prompts=prompts, wants_ids=True)
        return Continued(session.id, client, model, after, bool(params.replace), asked)

    def _go_on_again(
        self, name: str, params: SessionParams, asked: PreparedRequest, client: str, model: int
    ) -> Continued:
        """The prompt stands where the answer does, whatever has become of the session: nothing of that is changed."""
        session = self._load(name)
        after = params.rid or ("" if session is None else _last_turn(session, params))
        return Continued(name, client, model, after, False, replace(asked, wants_ids=True))

    async def _tokens(self, prompt: Prompt, begins: bool) -> list[int]:
        if isinstance(prompt, TokenPrompt):
            return prompt.tokens
        if isinstance(prompt, TextPrompt) and not begins:
            prompt = TextPrompt(prompt.text, False)
        tokens, _ = await self._engine.tokenize(prompt, False)
        return tokens

    def begun(self, turn: Continued, name: str) -> frozenset[str]:
        """Its answer, of this id, is asked for. The turns that there are before it."""
        session = self._load_for(turn, name)
        if session is None:
            return frozenset()
        stood = frozenset({*session.turns, *session.running})
        session.model = turn.model
        session.running[name] = turn.after
        while len(session.running) > MOST_TURNS:  # those that were given up
            del session.running[next(iter(session.running))]
        self._put(session)
        return stood

    def started(self, turn: Continued, name: str, stood: frozenset[str]) -> None:
        """Nothing refuses it any more: what it takes the place of goes, of those that stood there when it was begun."""
        session = self._load_for(turn, name)
        if session is not None and turn.replaces:
            _forget(session, turn.after, stood)
            self._put(session)

    def refused(self, turn: Continued, name: str) -> None:
        """Nothing comes of it."""
        session = self._load_for(turn, name)
        if session is not None and session.running.pop(name, None) is not None:
            self._put(session)

    def _load_for(self, turn: Continued, name: str) -> Session | None:
        """The session of a turn that it has not, and that none has taken the place of."""
        session = self._load(turn.session)
        if session is None or session.client != turn.client or name in (*session.turns, *session.forgotten):
            return None
        return session

    def keep(self, turn: Continued, name: str, prompt: list[int], answer: list[int]) -> None:
        """It has ended; `name` is the id of its answer. A session that was closed meanwhile keeps nothing, nor does one
        in which another turn has taken its place; and one that has the turn has it already.
        """
        session = self._load_for(turn, name)
        if session is None:
            return
        session.running.pop(name, None)
        kept = msgspec.msgpack.encode(Turn(prompt, answer))
        begun = name in session.turns  # a dead frontend has come so far
        if self._engine.put(_key("turn", session.id, name), kept):
            session.turns[name] = turn.after
            while len(session.turns) > MOST_TURNS:
                del session.turns[next(iter(session.turns))]
        self._put(session, turns=int(not begun))

    def _put(self, session: Session, turns: int = 0) -> None:
        session.until = time.monotonic() + session.timeout
        self._engine.put(_key("session", session.id), msgspec.msgpack.encode(session))
        self._engine.count_session(_key("session", session.id), session.until, turns)

    def _find(self, name: str, client: str, field: str) -> Session:
        found = self._load(name)
        if found is None or found.client != client:
            raise ApiError(404, f"{field}: no session {name!r:.80} is open.", field)
        return found

    def _load(self, name: str) -> Session | None:
        data = self._engine.get(_key("session", name))
        found = msgspec.msgpack.decode(data, type=Session) if data else None
        return found if found is not None and found.until > time.monotonic() else None


def session_of(body: CompletionRequest) -> str:
    """The id of the session that it is for; 400 where it says how to go on and not with which."""
    if body.session_params is None or body.session_params.id is None:
        raise bad_request(f"{ID} is missing: it says which session the turn is of.", ID)
    return body.session_params.id


def _turn_before(session: Session, params: SessionParams) -> str:
    """What it comes behind: a turn, or nothing. 400 for one that is not there."""
    after = params.rid or _last_turn(session, params)
    if after and after not in session.turns:
        raise bad_request(f"{RID}: the session has no turn {after!r:.80} (any more).", RID)
    return after


def _forget(session: Session, after: str, stood: frozenset[str]) -> None:
    """Of these turns all behind this one, or all; also such as have not ended."""
    behind, gone = {after}, set[str]()
    for turn, before in (session.turns | session.running).items():  # each stands behind the one that it follows
        if turn in stood and turn != after and (not after or before in behind):
            behind.add(turn)
            gone.add(turn)
    session.turns = {turn: before for turn, before in session.turns.items() if turn not in gone}
    late = [turn for turn in session.running if turn in gone]
    session.running = {turn: before for turn, before in session.running.items() if turn not in late}
    session.forgotten = [*session.forgotten, *late][-MOST_TURNS:]


def _last_turn(session: Session, params: SessionParams) -> str:
    """Where a turn that names none goes on."""
    return next(reversed(session.turns), "") if session.streaming and not params.replace else ""


def new_session_id(frontend: int, owner: Callable[[str], int]) -> str:
    """One that nobody else has, and that this frontend keeps."""
    while owner(name := secrets.token_hex(16)) != frontend:
        pass
    return name


def _key(*parts: str) -> bytes:
    return hashlib.sha256("\0".join(("session", *parts)).encode()).digest()[:KEY_BYTES]
