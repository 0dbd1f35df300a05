"""What operators ask of a running server, as it crosses rings. Each may come twice: what is done is answered."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from .wire import Message

Mode = Literal["abort", "wait", "keep"]  # what becomes of requests when nothing is computed any more


class Sleep(Message, frozen=True, tag=121):
    """Frontend → scheduler: give weights and KV memory back; answered by SleepChanged once that is done."""

    call: int
    level: int
    mode: Mode
    refuses: bool = False
    wait_s: int = 0
    weights: str | None = None  # the folder whose weights are loaded at the end of it; empty: the served model's


class WakeUp(Message, frozen=True, tag=122):
    """Frontend → scheduler: have these parts (shm/kv_map/sleep.py) again; answered by SleepChanged."""

    call: int
    parts: int


class Parked(Message, frozen=True, tag=123):
    """Worker → scheduler: this member of its group has no model and no KV memory."""

    rank: int
    level: int


class LookAtSleep(Message, frozen=True, tag=124):
    """Scheduler → worker: the sleep's word is another one. It says no more: the word may have changed since."""


class SleepChanged(Message, frozen=True, tag=125):
    """Scheduler → frontend: an engine sleeps, or has woken; or why it has other weights than it should."""

    call: int
    problem: str = ""


class CallWorkers(Message, frozen=True, tag=126):
    """Frontend → scheduler: let all workers do this; answered by WorkersCalled."""

    call: int
    method: str
    arguments: bytes  # JSON of CallArguments


class CallMethod(Message, frozen=True, tag=127):
    """Scheduler → worker: answered by MethodCalled with the same call."""

    call: int
    method: str
    arguments: bytes


class MethodCalled(Message, frozen=True, tag=128):
    """Worker → scheduler: what has come of it, or why nothing has."""

    call: int
    rank: int
    result: bytes = b"null"  # JSON
    problem: str = ""


class WorkersCalled(Message, frozen=True, tag=129):
    """Scheduler → frontend: what has come of it, by rank."""

    call: int
    results: list[bytes] = []
    problem: str = ""


class Unloadable(Message, frozen=True, tag=130):
    """Worker → scheduler: the weights of this generation (shm/weights.py) cannot be loaded."""

    generation: int
    problem: str


class Profile(Message, frozen=True, tag=131):
    """Frontend → scheduler of the first engine: profile all actors for so long; 0: no more; answered by Profiled."""

    call: int
    seconds: float


class Profiled(Message, frozen=True, tag=132):
    """Scheduler → frontend: the number of the profile that was begun or ended; 0: there is one already, or none."""

    call: int
    began: int


class CallArguments(msgspec.Struct, frozen=True):
    """Of a method of the workers."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


METHODS = {  # that all workers have (worker/methods.py), and what comes back
    "check_health": "true",
    "memory": "bytes: resident, private, of the KV memory's file",
    "kv_cache": "blocks, tokens that they hold, the step that was computed last",
    "model": "architecture, type of numbers, folder and generation of the weights",
    "list_loras": "ids of the adapters in memory",
    "num_threads": "threads that compute",
    "collect_garbage": "how many objects were found",
}
