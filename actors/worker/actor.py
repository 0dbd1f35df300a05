"""The worker actor: turns the scheduler's plans into steps of the Runner, and what they sample into messages.

It knows nothing of HTTP or text, and of requests only their slots. torch is imported only here and below, once its
threads have been told how to wait.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import msgspec

from actorserve.shm.logprobs import Logprobs

from ..gauges import WorkerGauge as Gauge
from ..grammar_words import make_lltokenizer
from ..matchers import Matchers
from ..messages import Hello, Message, Step, StepDone, StepFailed, ToWorker, WorkerReady
from ..parameters import Rendition
from ..runtime import Actor, Context, run
from ..tokenization import load_tokenizer

if TYPE_CHECKING:
    from .group import Group
    from .runner import Runner

OUT_OF_MEMORY = "allocate memory"  # in what torch's CPU allocator says when it cannot


class WorkerActor(Actor):
    """Adapter between the rings and the Runner."""

    def __init__(self, context: Context, runner: Runner, blocks: int) -> None:
        self.context = context
        self.runner = runner
        self.blocks = blocks
        self.epoch = 0  # of the scheduler's view that the rows belong to; 0: none
        self.broken = False  # a step of the epoch failed, so that its rows are not what the scheduler thinks
        self.step = 0
        self.speaks = context.spec.index == 0  # for its group: all of it come to the same
        self._say_ready()

    def handle(self, message: ToWorker) -> None:
        """One message, done completely and answered at once: behind it the next plan may wait already."""
        if self.context.stopping:
            return
        match message:
            case Step():
                self._run(message)
            case Hello():
                self._say_ready()
        self.context.flush()
        self.context.status.beat()

    def _say_ready(self) -> None:
        self._tell(WorkerReady(self.context.incarnation, self.blocks, self.step))

    def _tell(self, message: Message) -> None:
        if self.speaks:
            self.context.post("scheduler", message)

    def _run(self, message: Step) -> None:
        if message.epoch != self.epoch:
            if message.step != 1:  # planned for the rows of an earlier incarnation; its scheduler will begin anew
                self.context.log.info("step %d of another epoch is dropped", message.step)
                return
            self.epoch, self.broken = message.epoch, False
        self.step = message.step
        if self.broken:
            self._fail(message, "an earlier step of its epoch failed")
            return
        start = time.perf_counter()
        try:
            tokens = self.runner.run(message)
        except (MemoryError, RuntimeError) as error:
            alone = self.context.config.tensor_parallel_size == 1  # others would be in the middle of this step
            if not alone or (isinstance(error, RuntimeError) and OUT_OF_MEMORY not in str(error)):
                raise
            self._fail(message, str(error))
            return
        seconds = time.perf_counter() - start
        self._tell(StepDone(message.epoch, message.step, tokens.tobytes(), seconds))
        self.context.status.add(Gauge.STEPS, 1)

    def _fail(self, message: Step, reason: str) -> None:
        self.broken = True
        self._tell(StepFailed(message.epoch, message.step, reason))


def main(context: Context) -> None:
    """Load the model and run steps until told to stop."""
    _forget_old_plans(context)
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")  # both read when torch is loaded: idle threads sleep
    os.environ.setdefault("KMP_BLOCKTIME", "0")
    import torch

    with torch.inference_mode():
        runner, blocks = _load(context)
        context.status.set_gauge(Gauge.KV_TOKENS, blocks * context.config.block_size)
        run(WorkerActor(context, runner, blocks), context)


def _forget_old_plans(context: Context) -> None:
    """Plans from before this incarnation speak of KV that is gone; one of them may be what ended the last one."""
    while context.inbox.drain(lambda message: None):
        context.inbox.commit()


def _join(context: Context) -> Group | None:
    """The group of this worker, once all are there; None for one that has the whole model."""
    from .group import Group

    size = context.config.tensor_parallel_size
    if size == 1:
        return None
    first = context.system.of_kind("worker")[0]
    return Group(context.spec.index, size, context.files["meeting"], context.board.incarnation(first.position))


def _load(context: Context) -> tuple[Runner, int]:
    """(the runner, its number of KV blocks); ConfigError if the model or its memory cannot be had."""
    import torch

    from .loader import load_model
    from .machine import block_bytes, count_blocks, make_pool, usable_cores
    from .runner import Runner

    config, log = context.config, context.log
    group = _join(context)
    threads = config.threads or max(1, (usable_cores() - 1) // config.tensor_parallel_size)
    torch.set_num_threads(threads)
    start = time.perf_counter()
    model = load_model(config, context.model, group)
    seconds, dtype = time.perf_counter() - start, str(model.dtype).removeprefix("torch.")
    log.info("%s in %s loaded in %.1f s, threads: %d", context.model.architecture, dtype, seconds, threads)
    blocks = count_blocks(config, model.shape, context.model.max_model_len, model.dtype)
    if group is not None:
        blocks = group.least(blocks)
    size = blocks * block_bytes(model.shape, config.block_size, model.dtype) / 2**30
    tokens = f"{blocks * config.block_size:,} tokens in {blocks:,} blocks of {config.block_size}"
    log.info("KV memory: %.2f GiB, holds %s", size, tokens)
    pool = make_pool(model.shape, blocks, config.block_size, model.dtype)
    decoder = msgspec.msgpack.Decoder(Rendition)

    def read_rendition(ref: int) -> Rendition:
        return decoder.decode(packed) if (packed := context.table.rendition(ref)) else Rendition()

    def make_matchers() -> Matchers:
        size = model.shape.vocab_size
        return Matchers(make_lltokenizer(load_tokenizer(context.model), size, context.model.end_tokens), size)

    ids, rows = context.table.as_numpy().tokens, config.max_num_seqs
    area = Logprobs(context.files["logprobs"], *context.system.logprobs) if context.spec.index == 0 else None
    runner = Runner(model, pool, ids, config.block_size, rows, read_rendition, area, make_matchers)
    return runner, blocks
