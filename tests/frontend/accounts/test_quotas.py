"""Keys of a server with several models: each request is reserved and charged as its own model goes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from actorserve.actors.accounts.account import Account
from actorserve.actors.frontend.accounts.quotas import Quotas
from actorserve.actors.frontend.engine import FrontendEngine
from actorserve.actors.model.info import ModelInfo
from actorserve.actors.model.pooling.spec import PoolingSpec
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.http.generation.job import Job
from actorserve.shm.accounts.layout import Total

from ..others import MODEL, end, job

POOLS = PoolingSpec(tasks=["embed"], base="", methods=["mean"], normalize=True, hidden=8, width=8)
EMBEDDER = msgspec.structs.replace(MODEL, max_model_len=16, pooling=POOLS)
KEY = Account(0, "key", b"digest", budget=1000)
PROMPT = 3  # tokens


class Scene:
    """A frontend of a server with these models; a test plays all others."""

    def __init__(self, folder: Path, first: ModelInfo, second: ModelInfo) -> None:
        keys = folder / "keys.yaml"
        keys.write_text("keys: [{name: key, key: sk-key}]")
        sizes = {"max_num_seqs": 2, "max_num_queued_reqs": 2, "device": "cpu", "key_file": str(keys)}
        self.memory = Memory(System(make_config({**sizes, "also": ["org/other"]}), first, [second]))
        self.context = Context(self.memory.boot(self.memory.system.by_name["frontend-0"]))
        self.engine = FrontendEngine(self.context)

    @property
    def quotas(self) -> Quotas:
        assert self.engine.accounts.quotas is not None
        return self.engine.accounts.quotas

    @property
    def reserved(self) -> int:
        return sum(line.reserved for _, line in self.quotas.ledger.running(KEY.entry))

    def begin(self, model: int) -> Job:
        asked = job()
        asked.account = KEY
        self.engine.of_model(model).submit(asked)
        return asked

    def run(self, model: int) -> list[int]:
        """A request to its end; tokens of prompts and answers that it was charged."""
        asked = self.begin(model)
        (ref,) = asked.refs
        self.context.table.write_prompt(ref, [1] * PROMPT, b"", 8)
        self.context.table.set_finish(ref, 1)
        self.engine.handle(end(ref))
        self.engine.turn_ends()
        self.engine.release(asked)
        totals = self.quotas.ledger.totals(KEY.entry)
        return [totals[Total.PROMPT], totals[Total.COMPLETION]]


@pytest.fixture
async def scene(tmp_path: Path, request: pytest.FixtureRequest) -> AsyncIterator[Scene]:
    made = Scene(tmp_path, *request.param)
    yield made
    made.context.close()
    made.memory.close()


@pytest.mark.parametrize(
    ("scene", "generates"),
    [((MODEL, EMBEDDER), 0), ((EMBEDDER, MODEL), 1)],
    indirect=["scene"],
    ids=["the first generates", "the second generates"],
)
async def test_each_is_charged_and_bounded_as_its_own_model_is(scene: Scene, generates: int) -> None:
    assert scene.run(1 - generates) == [PROMPT, 0]
    assert scene.run(generates) == [2 * PROMPT, 3]
    scene.begin(generates)
    assert scene.reserved == MODEL.max_model_len
    scene.begin(1 - generates)
    assert scene.reserved == MODEL.max_model_len + EMBEDDER.max_model_len


@pytest.mark.parametrize("scene", [(MODEL, EMBEDDER)], indirect=True)
@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({"requests_per_minute": 1}, Total.REFUSED_REQUESTS),
        ({"tokens_per_minute": 1}, Total.REFUSED_TOKENS),
        ({"concurrent": 1}, Total.REFUSED_CONCURRENT),
        ({"budget": MODEL.max_model_len}, Total.REFUSED_BUDGET),
    ],
)
async def test_limits_can_be_asked_for_before_a_request_is_made(
    scene: Scene, limits: dict[str, int], reason: Total
) -> None:
    account = msgspec.structs.replace(KEY, **{"budget": None, **limits})
    headers, refusal = scene.engine.check_limits(account)
    assert refusal is None and all(int(left) for name, left in headers.items() if "remaining" in name)
    assert not scene.quotas.ledger.totals(KEY.entry)[Total.REQUESTS], "nothing is counted"
    asked = job()
    asked.account = account
    scene.engine.submit(asked)
    scene.context.table.write_prompt(asked.refs[0], [1] * PROMPT, b"", 8)
    headers, refusal = scene.engine.check_limits(account)
    assert headers.keys() == asked.headers.keys()
    assert {left for name, left in headers.items() if "remaining" in name} <= {"0"}
    assert bool(headers) == (reason in (Total.REFUSED_REQUESTS, Total.REFUSED_TOKENS))
    assert refusal is not None and refusal.status == 429 and scene.quotas.ledger.totals(KEY.entry)[reason] == 1
