"""What operators ask of a running server, as it crosses rings. Each may come twice: what is done is answered.

Which of it an engine is asked, and what it answers, stands at the end: rings and connections to engines elsewhere
(sockets/engine_wire.py) take the same.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from ..wire import Message

Mode = Literal["abort", "wait", "keep"]  # what becomes of requests when nothing is computed any more


class Sleep(Message, frozen=True, tag=121):
    """Frontend → scheduler: give weights and KV memory back; answered by SleepChanged once that is done."""

    call: int
    level: int
    mode: Mode
    refuses: bool = False
    wait_s: int = 0
    weights: str | None = None  # the folder whose weights are loaded at the end of it; empty: the served model's
    idle: bool = False  # as by --sleep-idle-seconds: what is asked wakes it


class WakeUp(Message, frozen=True, tag=122):
    """Frontend → scheduler: have these parts (shm/kv_map/sleep.py) again; answered by SleepChanged."""

    call: int
    parts: int
    loads: bool = False  # the model by its name: also one that waits to be asked for


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
    """Worker → scheduler: the weights of this generation (shm/weights.py), or the model's own, cannot be loaded."""

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


class CheckWeights(Message, frozen=True, tag=134):
    """Frontend → link: has the engine there such weights, that can be loaded? Answered by SleepChanged if so."""

    call: int
    folder: str
    digest: str  # of its files here


class Unanswered(Message, frozen=True, tag=133):
    """Scheduler → frontend: an engine elsewhere could not be asked, and why."""

    call: int
    problem: str
    status: int = 503


class CallArguments(msgspec.Struct, frozen=True):
    """Of a method of the workers."""

    args: list[Any] = []
    kwargs: dict[str, Any] = {}


LISTEN = "listen"  # of a worker whose model listens; frontends ask it, and no operator
METHODS = {  # that all workers have (worker/methods.py), and what comes back
    "check_health": "true",
    "memory": "bytes: resident, private, of the KV memory's file",
    "kv_cache": "blocks, tokens that they hold, the step that was computed last",
    "model": "architecture, type of numbers, folder and generation of the weights",
    "list_loras": "ids of the adapters in memory",
    "num_threads": "threads that compute",
    "collect_garbage": "how many objects were found",
}


class ForgetMedia(Message, frozen=True, tag=51):
    """Frontend → media: what was processed is not found again; answered by MediaForgotten. It may be done twice."""

    call: int


class ResetPrefixCache(Message, frozen=True, tag=16):
    """Frontend → scheduler: answered by PrefixCacheReset with the same call. It may be done twice."""

    call: int
    reset_running_requests: bool = False  # compute them again, in other blocks


class ResetEncoderCache(Message, frozen=True, tag=17):
    """Frontend → scheduler, answered by CacheReset; scheduler → worker: embeddings of pictures are made anew.

    It may be done twice. The scheduler answers when it has told the worker: each step that is planned from then on
    reaches the worker behind it, and a worker that dies before has forgotten all.
    """

    call: int


class Pause(Message, frozen=True, tag=70):
    """Frontend → scheduler: plan no more steps; answered by Paused with the same call once that is so. It may be done
    twice.
    """

    call: int
    mode: str = "abort"  # of PAUSE_MODES, or END
    clear_cache: bool = True  # what has been computed counts no more


PAUSE_MODES = ("abort", "wait", "keep")  # requests end at once; those that have begun end first; all go on later
END = "end"  # of a link: as `wait`, but those of other engines that have begun may come until it says `keep`


class Resume(Message, frozen=True, tag=71):
    """Frontend → scheduler: plan steps again; answered by Paused with the same call."""

    call: int


class Abort(Message, frozen=True, tag=72):
    """Frontend → scheduler: end the requests of these ids, or every one; answered by Aborted with the same call."""

    call: int
    request_ids: list[str] = []
    every: bool = False


class CacheReset(Message, frozen=True, tag=53):
    """Scheduler → frontend: the answer to ResetEncoderCache."""

    call: int


class PrefixCacheReset(Message, frozen=True, tag=47):
    """Scheduler → frontend: no request that comes from now on finds a prefix of those before it."""

    call: int


class MediaForgotten(Message, frozen=True, tag=48):
    """Media → frontend: pictures that come from now on are processed anew."""

    call: int


class Paused(Message, frozen=True, tag=73):
    """Scheduler → frontend: an engine plans no steps any more, or does again."""

    call: int


class Aborted(Message, frozen=True, tag=74):
    """Scheduler → frontend: so many sequences were ended."""

    call: int
    count: int


# --- what an engine is asked, and what it answers ------------------------------------------------------------------

AskedOfEngine = (
    ResetPrefixCache | ResetEncoderCache | Pause | Resume | Sleep | WakeUp | CallWorkers
)  # here, or elsewhere
EngineAnswer = PrefixCacheReset | CacheReset | Paused | SleepChanged | WorkersCalled  # to it
AskedOfScheduler = AskedOfEngine | Abort | Profile | CheckWeights  # by frontends
SchedulerAnswer = EngineAnswer | Aborted | Profiled | Unanswered
