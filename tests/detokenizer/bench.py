"""A detokenizer on real rings, and its neighbours as a test plays them: scheduler and a frontend that counts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec
from tokenizers import Tokenizer

from actorserve.actors.detokenizer.actor import DetokenizerActor
from actorserve.actors.protocol.messages import Advance, Delta, Finish, PromptTokenLogprobs, Resent, Stopped
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory

PROMPT = [7, 8, 9]
SLOT = 1


@dataclass
class Client:
    """What a frontend makes of the deltas of one choice."""

    text: str = ""
    tokens: int = 0
    finish: int = 0
    reason: Any = None
    last: bool = False

    def take(self, delta: Delta) -> None:
        if self.last:
            return  # the slot is closed
        assert delta.offset <= len(self.text), "a gap"
        self.last = delta.last
        if self.finish:
            return  # the client has its end
        have = len(self.text) - delta.offset
        assert self.text[delta.offset :].startswith(delta.text[:have]), "other text came again"
        self.text += delta.text[have:]
        assert delta.tokens >= self.tokens
        self.tokens, self.finish, self.reason = delta.tokens, delta.finish, delta.stop_reason


@dataclass
class Engine:
    """Memory, the neighbours of the detokenizer, and what they got."""

    memory: Memory
    tokenizer: Tokenizer
    clients: dict[int, Client] = field(default_factory=dict)
    deltas: list[Delta] = field(default_factory=list)
    stopped: list[int] = field(default_factory=list)
    received: list[Delta | Resent | PromptTokenLogprobs] = field(default_factory=list)  # by the frontend

    def __post_init__(self) -> None:
        self.scheduler = self.born("scheduler")
        self.frontend = self.born("frontend-0")
        self.table = self.scheduler.table
        self.context = self.born("detokenizer-0")
        self.actor = DetokenizerActor(self.context)

    def born(self, name: str) -> Context:
        return Context(self.memory.boot(self.memory.system.by_name[name]))

    def die(self) -> None:
        """The detokenizer dies where it is: what it did not publish is lost, what it did not commit comes again."""
        self.context.close()
        self.memory.raise_incarnation(self.memory.system.by_name["detokenizer-0"])
        self.context = self.born("detokenizer-0")
        self.actor = DetokenizerActor(self.context)

    def open(self, slot: int = SLOT, **fields: Any) -> int:
        params = msgspec.msgpack.encode(Generation(**{"sampling": Sampling(1), **fields}))
        ref = self.table.open_slot(slot, params, 0)
        self.table.write_prompt(ref, PROMPT, b"", 100)
        self.clients[ref] = Client()
        return ref

    def advance(self, ref: int, tokens: list[int], finish: Finish = Finish.NONE) -> None:
        """The scheduler's part of a step."""
        self.table.append(ref, tokens)
        if finish:
            self.table.set_finish(ref, finish)
        self.tell(ref)

    def tell(self, *refs: int) -> None:
        self.scheduler.post("detokenizer-0", Advance(list(refs)))
        self.scheduler.flush()

    def turn(self) -> None:
        """A turn of the actor's loop, as runtime.run has it."""
        self.context.inbox.drain(self.actor.handle)
        while not self.context.flush():
            self.receive()  # so that there is room in the lane
        self.actor.published()
        self.context.inbox.commit()
        self.receive()

    def receive(self) -> None:
        """What lies in the lanes reaches the frontend and the scheduler."""
        for inbox, take in ((self.frontend.inbox, self._take_delta), (self.scheduler.inbox, self._take_stopped)):
            while inbox.drain(take):  # a bounded amount at a time
                inbox.commit()

    def _take_delta(self, delta: Delta | Resent | PromptTokenLogprobs) -> None:
        self.received.append(delta)
        if not isinstance(delta, Delta):
            return
        self.deltas.append(delta)
        self.clients[delta.ref].take(delta)

    def _take_stopped(self, message: Stopped) -> None:
        self.stopped += message.refs

    def ids(self, text: str) -> list[int]:
        ids: list[int] = self.tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def close(self) -> None:
        for context in (self.context, self.frontend, self.scheduler):
            context.close()
        self.memory.close()
