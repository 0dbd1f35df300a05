"""The server's own first request: one token, on the way that every client's takes, so that ready means that it works.

With --warm-up the first frontend asks for it, and its successor if it dies before; the answer is told on the board.
"""

from __future__ import annotations

import asyncio
import io
import wave

import msgspec

from actorserve.http.errors import ApiError
from actorserve.http.generation.job import Job
from actorserve.shm.rings.mailbox import wake

from ..model.info import ModelInfo
from ..protocol.request import BY_TOKEN, Generation, Pooling, Sampling
from ..protocol.topics.prompts import SoundPrompt, TokenPrompt
from ..runtime.process import Context
from ..telemetry.gauges import FrontendGauge
from .administration.sleep import SleepWatch
from .engine import FrontendEngine

AGAIN_S = 1.0  # before another try, when an actor has died on the way, or has answered with an error
FIRST = 0  # the frontend that does it


def is_wanted(context: Context) -> bool:
    """Is it this frontend's to do, and not done yet?"""
    position = context.spec.position
    done = context.board.gauge(position, FrontendGauge.WARM)
    return context.config.warm_up and context.spec.index == FIRST and not done


async def warm_up(context: Context, engine: FrontendEngine) -> None:
    """Ask each model that is loaded until there is an answer, then say so and wake the supervisor."""
    watch = SleepWatch(context)
    for served in context.system.models:
        if watch.is_unloaded(served.index):
            continue
        spec = served.info.pooling
        pooling = None if spec is None else Pooling(spec.tasks[0], whole=spec.tasks[0] in BY_TOKEN or not spec.chunked)
        sampling = Sampling(seed=0, temperature=0.0, pooling=pooling)
        params = Generation(sampling, ignore_eos=True, stream=False, request_id="warm-up")
        while not await _ask(context, engine.of_model(served.index), served.info, msgspec.msgpack.encode(params)):
            await asyncio.sleep(AGAIN_S)
    context.status.set_gauge(FrontendGauge.WARM, 1)
    wake(context.eventfds["supervisor"])


def _silence() -> bytes:
    """A tenth of a second."""
    made = io.BytesIO()
    with wave.open(made, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes(bytes(3200))
    return made.getvalue()


async def _ask(context: Context, engine: FrontendEngine, model: ModelInfo, params: bytes) -> bool:
    """Has it brought a token?"""
    encoder = model.encoder
    hears = encoder is not None and encoder.speech is not None
    prompt = SoundPrompt(_silence(), "") if hears else TokenPrompt([0])
    job = Job([prompt], [params], {"max_tokens": 1, "pools": model.pooling is not None})
    try:
        engine.submit(job)
        await job.done
    except ApiError as error:
        context.log.warning("the warm-up request has failed and is made again: %s", error)
        return False
    finally:
        engine.release(job)
    return job.completion_tokens > 0
