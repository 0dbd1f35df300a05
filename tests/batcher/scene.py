"""A folder with a batch, and somebody who answers its lines."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

from actorserve.actors.batcher.asking import Asker
from actorserve.actors.batcher.batch_run import BatchRun, Limits
from actorserve.actors.batcher.memory import LineMemory
from actorserve.actors.files.batches import Batch, BatchRequest, BatchState, BatchStore
from actorserve.actors.files.folder import Folder
from actorserve.actors.files.lines import Request, answer_line
from actorserve.actors.files.store import FileStore
from tests.files.test_store import BATCH, ID, OWNER, keep

ENDPOINT = "/v1/completions"
LONGEST = 10_000


def line(name: str, **fields: Any) -> str:
    asked = {"custom_id": name, "method": "POST", "url": ENDPOINT, "body": {"model": "m", "prompt": name}}
    return json.dumps(asked | fields) + "\n"


class OneBatch:
    """A folder with one batch."""

    id: str
    files: FileStore
    store: BatchStore

    @property
    def batch(self) -> Batch:
        found = self.store.get(self.id)
        assert found is not None
        return found

    @property
    def state(self) -> BatchState:
        return self.batch.state


class Scene(OneBatch):
    """The batch of these lines."""

    id = BATCH

    def __init__(
        self, folder: Path, lines: str, expires_s: float = 1000.0, output_expires_s: int | None = None
    ) -> None:
        self.files = FileStore(Folder(folder), 1 << 30)
        self.store = BatchStore(self.files.folder)
        keep(self.files, lines.encode())
        now = int(time.time())
        request = BatchRequest(
            id=BATCH,
            endpoint=ENDPOINT,
            input_file_id=ID,
            completion_window="24h",
            created_at=now,
            expires_at=int(now + expires_s),
            owner=OWNER,
            order=1,
            output_expires_s=output_expires_s,
        )
        self.store.create(request)

    def answers(self, file_id: str | None) -> dict[str, Any]:
        """By their custom_ids; each is there once."""
        if file_id is None:
            return {}
        answers = [json.loads(one) for one in self.files.content(file_id).read_text().splitlines()]
        assert len({one["custom_id"] for one in answers}) == len(answers)
        return {one["custom_id"]: one for one in answers}

    @property
    def output(self) -> dict[str, Any]:
        return self.answers(self.state.output_file_id)

    @property
    def errors(self) -> dict[str, Any]:
        return self.answers(self.state.error_file_id)


class FakeAsker:
    """Answers each line with its custom_id, and 400 where that begins with bad."""

    def __init__(self) -> None:
        self.asked: list[tuple[int, str]] = []
        self.open = asyncio.Event()  # lines are answered
        self.open.set()
        self.came = asyncio.Event()

    async def why_no_model(self, batch: BatchRequest, model: str) -> str:
        return "There is no such model." if model == "none" else ""

    async def ask(self, batch: BatchRequest, number: int, line: Request) -> dict[str, Any]:
        self.asked.append((number, line.custom_id))
        self.came.set()
        await self.open.wait()
        status = 400 if line.custom_id.startswith("bad") else 200
        return answer_line(line.custom_id, {"status_code": status, "body": line.custom_id}, None)

    async def was_asked(self, lines: int) -> None:
        """So many."""
        while len(self.asked) < lines:
            await self.came.wait()
            self.came.clear()


def run_of(
    scene: Scene,
    asker: FakeAsker | None = None,
    most: int = 4,
    counted: Callable[[bool], object] = bool,
    longest: int = LONGEST,
    memory: int = 1 << 20,
) -> BatchRun:
    return BatchRun(
        scene.store, cast(Asker, asker or FakeAsker()), scene.batch, Limits(longest, most, LineMemory(memory)), counted
    )
