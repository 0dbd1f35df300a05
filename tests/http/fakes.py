"""What the app asks, played by tests: an engine, and what operators tell it."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterable, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext
from typing import Any

from actorserve.actors.accounts.account import Account
from actorserve.actors.protocol.messages import Delta, Finish
from actorserve.actors.protocol.topics.calls import Measured
from actorserve.actors.protocol.topics.io_processors import PooledPrompt
from actorserve.actors.protocol.topics.prompts import Prompt
from actorserve.http.dashboard.figures import PageEngine, PageFigures
from actorserve.http.errors import ApiError
from actorserve.http.generation.idempotency_keys import Kept, Key, Records
from actorserve.http.generation.job import Heard, Job
from actorserve.http.generation.times import JobTimes, PromptProgress
from actorserve.http.loads import EngineLoad
from actorserve.http.output.events import Content, Piece


class FakeAdministration:
    """What an operator has asked for."""

    def __init__(self) -> None:
        self.sleeps: list[tuple[int, str, bool, int]] = []
        self.woken: list[list[str]] = []
        self.profiled = 0.0
        self.updates: list[tuple[str, str, int]] = []
        self.loads: list[EngineLoad] = []
        self.unloaded: set[int] = set()
        self.load_problems: dict[int, str] = {}
        self.leaving: set[int] = set()
        self.found_since: dict[str, str] = {}

    async def unload_model(self, model: int) -> None:
        self.unloaded.add(model)

    async def load_model(self, model: int) -> None:
        self.unloaded.discard(model)

    def model_state(self, model: int) -> str:
        return "unloaded" if model in self.unloaded else "loaded"

    def load_problem(self, model: int) -> str:
        return self.load_problems.get(model, "")

    def is_leaving(self, model: int) -> bool:
        return model in self.leaving

    async def models_found_since(self) -> dict[str, str]:
        return self.found_since

    async def sleep(self, level: int, mode: str, refuses: bool, wait_s: int) -> None:
        self.sleeps.append((level, mode, refuses, wait_s))

    async def wake_up(self, parts: list[str]) -> None:
        self.woken.append(parts)
        self.sleeps.clear()

    def is_sleeping(self) -> bool:
        return bool(self.sleeps)

    def sleeps_until_woken(self) -> bool:
        return self.is_sleeping()

    async def update_weights(self, path: str, mode: str, wait_s: int) -> None:
        self.updates.append((path, mode, wait_s))

    async def call_workers(
        self, method: str, args: list[Any], kwargs: dict[str, Any], timeout_s: float | None = None
    ) -> list[Any]:
        return [[method, args, kwargs, timeout_s]]

    async def start_profile(self, seconds: float) -> None:
        self.profiled = seconds

    async def stop_profile(self) -> dict[str, Any]:
        return {"path": "trace.json", "events": 1, "missing": {}, "cut": []}

    def world_size(self, every: bool) -> int:
        return 4 if every else 2

    def server_info(self, config_format: str) -> dict[str, Any]:
        return {"config_format": config_format}

    def engine_loads(self) -> list[EngineLoad]:
        return self.loads


class FakeScaling:
    """Engines that a test says."""

    def __init__(self) -> None:
        self.most, self.count, self.under_way = 3, 1, False
        self.refusal: Exception | None = None

    def engines(self) -> int:
        return self.count

    async def is_scaling(self) -> bool:
        return self.under_way

    async def scale(self, engines: int) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.count = engines


class FakeEngine:
    """http.generation.job.Engine, where a test is all the other actors."""

    def __init__(self) -> None:
        self.jobs: asyncio.Queue[Job] = asyncio.Queue()
        self.released: asyncio.Queue[Job] = asyncio.Queue()
        self.running: list[Job] = []
        self.refusal: Exception | None = None
        self.limit: ApiError | None = None  # that a key has met
        self.missing: list[str] = []
        self.asked: list[Any] = []
        self.index, self.frontends, self.alone = 0, 1, False
        self.payloads: dict[bytes, bytes] = {}
        self.others_payloads: dict[int, dict[bytes, bytes]] = {}  # of other frontends
        self.conversations: Records = self
        self.open_sessions: dict[bytes, float] = {}
        self.pauses: list[tuple[str, bool]] = []
        self.others: dict[int, FakeEngine] = {}  # of further models
        self.administration = FakeAdministration()
        self.aborts: list[tuple[list[str], bool]] = []
        self.resets: list[bool] = []
        self.job_times = JobTimes()
        self.computed = 0  # tokens of each prompt
        self.forgotten = 0
        self.skipped = False  # special tokens, where a text was asked for last
        self.scaling = FakeScaling()
        self.charged: list[tuple[str, int, int]] = []
        self.adapters_asked: list[tuple[str, str, bool]] = []
        self.kept_jobs: dict[bytes, tuple[Kept, Job]] = {}
        self.sessions = self.answers_begun = 0
        self.sockets = self.responses_begun = 0

    def of_model(self, model: int) -> FakeEngine:
        other = self.others.setdefault(model, FakeEngine())
        other.administration = self.administration
        return other

    def submit(self, job: Job, refs: list[int] | None = None) -> None:
        if self.refusal is not None:
            raise self.refusal
        if refs is None and job.lost is not None:
            raise job.lost
        self.running.append(job)
        self.jobs.put_nowait(job)

    def turn(self, account: Account) -> AbstractAsyncContextManager[None]:
        return nullcontext()

    def check_limits(self, account: Account) -> tuple[dict[str, str], ApiError | None]:
        return {"x-ratelimit-remaining-requests": "0"}, self.limit

    def charge_alone(self, account: Account, prompt: int, completion: int) -> None:
        self.charged.append((account.name, prompt, completion))

    def has(self, refs: list[int]) -> bool:
        return False

    def keep(self, key: Key, job: Job, seed: int, created: int) -> None:
        self.kept_jobs[key.name] = Kept(key.digest, job.refs, seed, created), job

    def kept(self, key: Key) -> Kept | None:
        return self.kept_jobs[key.name][0] if key.name in self.kept_jobs else None

    def abort(self, job: Job, key: Key) -> None:
        self.kept_jobs.pop(key.name, None)
        self.release(job)

    def put(self, key: bytes, payload: bytes) -> bool:
        self.payloads[key] = payload
        return True

    def get(self, key: bytes, frontend: int | None = None) -> bytes | None:
        found = self.payloads if frontend in (None, self.index) else self.others_payloads[frontend or 0]
        return found.get(key)

    def kept_payloads(self) -> list[bytes]:
        return list(self.payloads.values())

    def count_realtime(self, sessions: int = 0, begun: int = 0) -> None:
        self.sessions, self.answers_begun = self.sessions + sessions, self.answers_begun + begun

    def count_response_sockets(self, sockets: int = 0, begun: int = 0) -> None:
        self.sockets, self.responses_begun = self.sockets + sockets, self.responses_begun + begun

    def count_session(self, key: bytes, until: float, turns: int = 0) -> None:
        self.open_sessions[key] = until

    def release(self, job: Job) -> None:
        if job in self.running:  # it may not have begun
            self.running.remove(job)
        self.released.put_nowait(job)

    def times(self, job: Job) -> JobTimes:
        return self.job_times

    def progress(self, job: Job) -> list[PromptProgress]:
        known = [choice for choice in job.choices if choice.prompt_tokens]
        return [PromptProgress(one.index, one.prompt_tokens, one.cached_tokens, self.computed) for one in known]

    async def want_adapter(self, name: str | None) -> None:
        return None

    async def load_adapter(self, name: str, path: str, in_place: bool) -> None:
        self.adapters_asked.append((name, path, in_place))
        if self.refusal is not None:
            raise self.refusal

    async def unload_adapter(self, name: str) -> None:
        self.adapters_asked.append((name, "", False))
        if self.refusal is not None:
            raise self.refusal

    async def tokenize(self, prompt: Prompt, token_strings: bool) -> tuple[list[int], list[str] | None]:
        if self.refusal is not None:
            raise self.refusal
        self.asked.append(prompt)
        return [1, 2], ["a", "b"] if token_strings else None

    async def tokenize_as_rendered(
        self, prompt: Prompt, rendering: Mapping[str, Any], offsets: bool
    ) -> tuple[list[int], list[tuple[int, int]] | None]:
        tokens, _ = await self.tokenize(prompt, False)
        return tokens, [(0, 1), (1, 2)] if offsets else None

    async def pooled_ids(self, prompt: Prompt, field: str, most: int) -> list[int]:
        return (await self.tokenize(prompt, False))[0]

    async def token_texts(self, tokens: list[int]) -> list[str]:
        return [str(token) for token in tokens]

    async def pre_process(self, request_id: str, data: bytes) -> list[Prompt]:
        return []

    async def post_process(self, request_id: str, data: bytes, pooled: list[PooledPrompt]) -> bytes:
        return b"null"

    async def measure(self, sound: bytes) -> Measured:
        self.asked.append(sound)
        return Measured(1, 1.0, [(0.0, 1.0)])

    async def listen(self, ref: int, samples: int, timed: bool) -> Heard:
        return Heard(0.0, 0.0)

    async def pieces(self, tokens: list[int]) -> list[bytes]:
        return [b" a", b"\xc3"][: len(tokens)]

    async def detokenize(self, tokens: list[int], skip_special: bool = False) -> str:
        self.asked.append(tokens)
        self.skipped = skip_special
        return "text"

    async def reset_encoder_cache(self) -> None:
        self.forgotten += 1

    async def reset_mm_cache(self) -> None:
        self.forgotten += 1

    async def reset_prefix_cache(self, reset_running_requests: bool) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.resets.append(reset_running_requests)

    async def pause(self, mode: str, clear_cache: bool) -> None:
        self.pauses.append((mode, clear_cache))

    async def resume(self) -> None:
        self.pauses.clear()

    def is_paused(self) -> bool:
        return bool(self.pauses)

    async def abort_requests(self, request_ids: list[str], every: bool) -> int:
        self.aborts.append((request_ids, every))
        return len(request_ids)

    def degraded(self) -> list[str]:
        return []

    def not_ready(self) -> list[str]:
        return self.missing

    def in_flight(self) -> int:
        return len(self.running)

    def load(self) -> int:
        return len(self.running)

    def metrics(self, accept: str = "") -> tuple[Iterable[bytes], str]:
        return [b"# HELP a b\n", b"a 1.0\n"], "text/plain; version=0.0.4; charset=utf-8"

    def page_figures(self) -> PageFigures:
        return PageFigures(time.monotonic(), [], [], PageEngine(0, 0, 0, 0, 0, 0, 0, 0, "", ""))


class BrokenParser:
    """As a plugin's may be."""

    def __init__(self, fails_at_once: bool = False) -> None:
        self._fails_at_once = fails_at_once

    def feed(self, text: str) -> list[Piece]:
        if self._fails_at_once:
            raise RuntimeError("a plugin's")
        return [Content(text)] if text else []

    def finish(self) -> list[Piece]:
        raise RuntimeError("a plugin's")


def say(job: Job, index: int, text: str, tokens: int = 1, finish: int = 0, **more: Any) -> None:
    """One delta after what the choice has, in a turn of its own."""
    job.delta(index, Delta(0, job.choices[index].characters, text, tokens, finish, **more), cached_tokens=2)
    job.flush()


def rendered(job: Job, tokens: int = 5) -> None:
    for choice in job.choices:
        job.rendered(choice.index, tokens)


def finish_all(job: Job, text: str = "yes") -> None:
    """The whole of a job at once."""
    rendered(job)
    for choice in job.choices:
        say(job, choice.index, f"{text}{choice.index}", 3, Finish.STOP)
