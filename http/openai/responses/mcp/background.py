"""A response in the background whose model may call tools: as the store of responses has those that run."""

from __future__ import annotations

import asyncio

from ....errors import ApiError
from ....generation.idempotency_keys import Key
from ....generation.job import Engine, Job
from ....output.writer import AnswerFormat
from ..schemas import Object
from ..store import AtEnd
from .run import ToolRun
from .run_format import ToolRunFormat


class RunningTools:
    """Implements store.RunningResponse. Its turns keep their slots by themselves."""

    def __init__(self, run: ToolRun, begun: bytes | None = None, request_id: str = "") -> None:
        """`begun`: the digest of the request, where a predecessor has begun it."""
        self.request_id = request_id
        self.answer, self.job = run.answer, run.job
        self.task: asyncio.Task[None] | None = None
        self._run, self._begun = run, begun
        self._calls: asyncio.Task[None] | None = None

    def begin(self) -> None:
        """From here on it goes on by itself."""
        self._calls = asyncio.get_running_loop().create_task(self._run.run(self._begun))

    def keep(self, engine: Engine, key: Key) -> None:
        """See RunningResponse."""

    def body(self) -> Object:
        """See RunningResponse."""
        return self._run.ended

    def failed(self, error: ApiError) -> Object:
        """See RunningResponse."""
        return self._run.failed_body(error)

    def read(self, engine: Engine, after: int, at_end: AtEnd) -> tuple[Job, AnswerFormat]:
        """See RunningResponse; the run keeps its end before it tells of it."""
        return self._run.readers.add(), ToolRunFormat(self._run, after + 1)

    def stop_reading(self, engine: Engine, job: Job) -> None:
        """See RunningResponse."""
        self._run.readers.remove(job)

    def leave(self, engine: Engine) -> None:
        """See RunningResponse."""
        self._run.leave()

    def abort(self, engine: Engine, key: Key, error: ApiError) -> None:
        """See RunningResponse."""
        if self._calls is not None:
            self._calls.cancel()
        self._run.leave()
        self._run.readers.fail(error)
