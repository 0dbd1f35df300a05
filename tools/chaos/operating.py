"""What an operator does beside faults, one thing after the other (`tools/chaos/faults --operations`).

Each ends as it began, so that answers stay the same; what is not answered as it should be raises.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import aiohttp

from actorserve.actors.model.info import DEMO_FOLDER

KEY = "chaos"
LONGEST_S = 240.0
PASSING = "passing"  # an adapter that comes and goes
ENGINES = 2  # that there are at most


def options_for(names: Sequence[str], folder: Path) -> list[str]:
    """What the server has to be started with."""
    words = ["--admin-api-key", KEY]
    if "weights" in names:
        shutil.copytree(DEMO_FOLDER, folder / "weights" / "same")
        words += ["--weights-folder", str(folder / "weights")]
    if "scales" in names:
        words += ["--max-data-parallel-size", str(ENGINES)]
    return words


class Operator:
    """Of one server; `folder`: where its adapters and weights are."""

    def __init__(self, session: aiohttp.ClientSession, rng: random.Random, folder: Path, counts: Counter[str]) -> None:
        self._session, self._rng, self._folder, self._counts = session, rng, folder, counts
        self.engines = 1  # that stay until another is told of
        self.hit = asyncio.Lock()  # by who waits for the next life of one of theirs

    async def work(self, names: Sequence[str], done: asyncio.Event) -> None:
        """Until it is done."""
        while not done.is_set():
            name = self._rng.choice(names)
            await NAMES[name](self)
            self._counts[name] += 1
            await self._wait(2.0)

    async def sleep(self) -> None:
        """Requests go on behind it."""
        level, mode = self._rng.choice([1, 2]), self._rng.choice(["keep", "wait"])
        await self._ask(f"/sleep?level={level}&mode={mode}")
        await self._wait(5.0)
        await self._ask("/wake_up")

    async def pause(self) -> None:
        mode, clear = self._rng.choice(["keep", "wait"]), self._rng.choice(["true", "false"])
        await self._ask(f"/pause?mode={mode}&clear_cache={clear}")
        await self._wait(5.0)
        await self._ask("/resume")

    async def adapter(self) -> None:
        """It says what the first of --lora does, of which it is a copy."""
        path = str(self._folder / "adapter-0")
        await self._ask("/v1/load_lora_adapter", {"lora_name": PASSING, "lora_path": path})
        texts = [await self._complete(name) for name in (PASSING, "adapter-0")]
        if texts[0] != texts[1]:
            raise SystemExit(f"an adapter that came says {texts[0]!r} instead of {texts[1]!r}")
        await self._ask("/v1/unload_lora_adapter", {"lora_name": PASSING})

    async def weights(self) -> None:
        """The same ones, from another folder and back."""
        mode = self._rng.choice(["keep", "wait"])
        for folder in (self._folder / "weights" / "same", DEMO_FOLDER):
            await self._ask("/update_weights", {"path": str(folder), "mode": mode})

    async def scale(self) -> None:
        """A worker that is hit comes up before its engine is parked."""
        await self._scale(ENGINES)
        self.engines = ENGINES
        await self._wait(1.0)
        async with self.hit:
            self.engines = 1
        await self._scale(1)
        await self._wait(1.0)

    async def model(self) -> None:
        """One is unloaded, and loaded as soon as there is a place for it, if nobody has asked it before."""
        async with self._session.get("/v1/models") as answer:
            names = [one["id"] for one in (await answer.json())["data"] if one["parent"] is None]
        name = self._rng.choice(names)
        await self._ask("/models/unload", {"model": name})
        await self._wait(5.0)
        await self._ask("/models/load", {"model": name})

    async def _scale(self, count: int) -> None:
        await self._ask("/scale_elastic_ep", {"new_data_parallel_size": count})

    async def _wait(self, rate: float) -> None:
        await asyncio.sleep(self._rng.expovariate(rate))  # when it is done is what is at random

    async def _complete(self, model: str) -> str:
        body = {"model": model, "prompt": "Hello!", "max_tokens": 8, "temperature": 0, "ignore_eos": True}
        return str((await self._ask("/v1/completions", body))["choices"][0]["text"])

    async def _ask(self, path: str, body: dict[str, Any] | None = None) -> Any:
        timeout = aiohttp.ClientTimeout(total=LONGEST_S)
        headers = {"X-Api-Key": KEY}
        async with self._session.post(path, json=body, headers=headers, timeout=timeout) as answer:
            if answer.status != 200:
                raise SystemExit(f"POST {path}: {answer.status} {await answer.text()}")
            return await answer.json() if answer.content_type == "application/json" else await answer.text()


NAMES: dict[str, Callable[[Operator], Awaitable[None]]] = {
    "sleeps": Operator.sleep,
    "pauses": Operator.pause,
    "adapters": Operator.adapter,
    "weights": Operator.weights,
    "scales": Operator.scale,
    "models": Operator.model,
}
