"""All actors but the frontend, as a test plays them, around a frontend's engine on real rings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from actorserve.actors.frontend.engine import FrontendEngine
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.messages import Delta, Finish, Message, Rendered
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.http.generation.idempotency_keys import Key
from actorserve.http.generation.job import Job
from actorserve.http.output.events import Content
from actorserve.shm.table.stamps import Stamp, Stamps

MODEL = ModelInfo(
    folder="/none",
    tokenizer_folder="/none",
    architecture="LlamaForCausalLM",
    vocab_size=32,
    max_model_len=64,
    end_tokens=[],
    sampling_defaults={},
)
PARAMS = msgspec.msgpack.encode(Generation(Sampling(1)))


class Others:
    """All actors but the frontend, which is made anew for each of its lives."""

    def __init__(self, renderers: int = 1, frontends: int = 1, hidden: int = 0) -> None:
        """`hidden`: the numbers of a token's state, where requests may be told them."""
        config = Config(max_num_seqs=2, max_num_queued_reqs=2, renderers=renderers, frontends=frontends)
        config = msgspec.structs.replace(config, enable_return_hidden_states=bool(hidden))
        self.memory = Memory(System(config, msgspec.structs.replace(MODEL, hidden=hidden)))
        self.names = [actor.name for actor in self.memory.system.actors if actor.kind != "frontend"]
        self.contexts = {name: self.born(name) for name in self.names}
        self.table = self.contexts["scheduler"].table
        self.context = self.born("frontend-0")
        self.engine = FrontendEngine(self.context)

    def born(self, name: str) -> Context:
        return Context(self.memory.boot(self.memory.system.by_name[name]))

    def restart(self, reserved: Sequence[int] = ()) -> None:
        """The frontend dies; what it did not commit comes again. `reserved`: slots of streams that may go on."""
        self.context.close()
        self.context = self.born("frontend-0")
        self.engine = FrontendEngine(self.context, reserved)
        self.context.flush()

    def received(self, name: str) -> list[Any]:
        """What an actor has been sent since the last time."""
        self.context.flush()
        got: list[Any] = []
        inbox = self.contexts[name].inbox
        inbox.drain(got.append)
        inbox.commit()
        return got

    def tell(self, name: str, *messages: Message) -> None:
        """An actor's messages to the frontend, handled as one turn."""
        for message in messages:
            self.contexts[name].post("frontend-0", message)
        self.contexts[name].flush()
        self.turn()

    def turn(self) -> None:
        self.context.inbox.drain(self.engine.handle)
        self.engine.turn_ends()
        self.context.flush()
        self.context.inbox.commit()

    def begun(self, key: Key | None = None) -> Job:
        """A request up to where its prompt is in the table."""
        made = job()
        self.engine.submit(made)
        if key is not None:
            self.engine.keep(key, made, 7, 8)
        self.put_prompt(made.refs)
        self.tell("renderer-0", Rendered(made.refs, 3))
        return made

    def is_end_told(self, ref: int) -> bool:
        """Is there nobody who waits for its end?"""
        return bool(Stamps(self.table).get(ref, Stamp.END_TOLD))

    def put_prompt(self, refs: list[int]) -> None:
        """What a renderer does with slots before it answers Rendered."""
        for ref in refs:
            self.table.write_prompt(ref, [1, 2, 3], b"", 64)


def job(choices: int = 1, prompts: int = 1) -> Job:
    return Job([TextPrompt("Hello")] * prompts, [PARAMS] * choices)


def end(ref: int, text: str = "text", finish: Finish = Finish.STOP) -> Delta:
    return Delta(ref, 0, text, 3, finish, None, True)


def text_of(made: Job, index: int = 0) -> str:
    """What has come of a choice since the last time."""
    return "".join(piece.text for piece in made.choices[index].take().pieces if isinstance(piece, Content))
