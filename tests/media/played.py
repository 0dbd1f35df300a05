"""A media actor over real rings and memory, whose frontend and renderer a test plays."""

from __future__ import annotations

import base64
from typing import Any

import msgspec
import numpy as np
import torch  # noqa: F401  # before transformers, which would believe for all of this process that there is none

from actorserve.actors.frontend.media import MediaGate
from actorserve.actors.media.actor import MediaActor
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.media import BASE64, MediaSource, PreparedMedia
from actorserve.actors.protocol.messages import Render
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.in_flight import Ended
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from tests.support.models.vision.folders import picture

PARAMS = msgspec.msgpack.encode(Generation(Sampling(1), request_id="name"))
PART = "messages[0].content[0].image_url"
TURNS = 1000
SMALL = 1 << 20  # bytes of the arena: sixteen pictures of these, or fewer


class Bench:
    """A media actor, and those around it."""

    def __init__(self, model: ModelInfo, **options: Any) -> None:
        sizes: dict[str, Any] = {"max_num_seqs": 2, "max_num_queued_reqs": 2, "block_size": 8, "max_body_bytes": 4096}
        config = Config(model=model.folder, media_memory_bytes=SMALL, worker="scripted", **sizes, **options)
        self.memory = Memory(System(config, model))
        self.frontend, self.renderer = self.born("frontend-0"), self.born("renderer-0")
        self.table = self.frontend.table
        self.gate = MediaGate(self.frontend)
        self.slot = 0
        self.start()

    def born(self, name: str) -> Context:
        return Context(self.memory.boot(self.memory.system.by_name[name]))

    def start(self) -> None:
        self.context = self.born("media-0")
        self.media = MediaActor(self.context)

    def restart(self, ended: Ended = Ended.DIED) -> None:
        """It dies with all that it has in hand."""
        self.media.fetcher.close()
        self.context.close()
        self.memory.raise_incarnation(self.context.spec, ended)
        self.start()

    def close(self) -> None:
        self.media.fetcher.close()
        for context in (self.context, self.frontend, self.renderer):
            context.close()
        self.memory.close()

    def open(self) -> int:
        self.slot = (self.slot + 1) % self.table.slots
        return self.table.open_slot(self.slot, PARAMS, 1)

    def ask(self, *sources: MediaSource, refs: list[int] | None = None) -> list[int]:
        """A request with these."""
        refs = refs or [self.open()]
        record = self.gate.reserve(Render([], TextPrompt("x")), sources, len(refs))
        self.gate.render("renderer-0", record, refs)
        self.frontend.flush()
        return refs

    def turn(self) -> int:
        """One turn of the actor's loop."""
        done = self.context.inbox.drain(self.media.handle, self.media.one_record) + self.media.do_work()
        if self.context.flush():
            self.media.published()
            self.context.inbox.commit()
        return done

    def run(self) -> None:
        """Until there is nothing to do."""
        for _ in range(TURNS):
            if not self.turn() and not self.media._pending:
                return
        raise AssertionError("it does not come to an end")

    def rendered(self) -> list[Any]:
        return self._got(self.renderer)

    def told(self) -> list[Any]:
        return self._got(self.frontend)

    def _got(self, context: Context) -> list[Any]:
        received: list[Any] = []
        context.inbox.drain(received.append)
        context.inbox.commit()
        return received

    def pixels(self, prepared: PreparedMedia) -> np.ndarray:
        seen = self.renderer.media()
        assert seen is not None
        return np.array(seen.array(prepared.tensors[0]))


def source(seed: int = 0, width: int = 40, height: int = 24) -> MediaSource:
    data = base64.b64encode(picture(width, height, seed))
    return MediaSource("image", PART, data=data, form=BASE64)
