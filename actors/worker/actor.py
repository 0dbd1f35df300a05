"""The worker actor: turns the scheduler's plans into steps of the CpuRunner, and what they sample into messages.

It knows nothing of HTTP or text, and of requests only their slots. torch is imported only here and below, as
torch_import.py does it.
"""

from __future__ import annotations

import gc
import importlib
import sys
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from actorserve.shm.table.logprobs import Logprobs

from ..grammar.matchers import Matchers
from ..grammar.vocabulary import make_lltokenizer
from ..model.checks import check_device, check_gpu
from ..model.memory.kv_memory import KVMemory
from ..model.memory.machine import blocks_in, kv_memory_room, usable_cores
from ..model.tokenizers.tokenizer import load_tokenizer
from ..options.config import Config, ConfigError
from ..options.speculative import count_drafts
from ..protocol.administration import CallMethod, LookAtSleep
from ..protocol.messages import (
    AdapterRead,
    BlocksLoaded,
    DropAdapter,
    Hello,
    LoadBlocks,
    Message,
    ReadAdapter,
    ResetEncoderCache,
    StepFailed,
    ToWorker,
    WorkerReady,
)
from ..protocol.request import Rendition
from ..protocol.step import KVLayout, Step, StepDone
from ..runtime.dump import write_dump
from ..runtime.in_flight import NO_REQUEST, log_debug, request_name
from ..runtime.process import RENEW, Actor, Context, run
from ..telemetry.gauges import WorkerGauge as Gauge
from ..telemetry.startup import StartPhase
from ..telemetry.trace_events import EventKind, counts
from .kept_memory import KeptMemory, anonymous, digest_of
from .methods import WorkerMethods
from .parked import ParkedWorker, load_weights, sleep_word
from .profile import TorchProfiler
from .torch_import import import_rest, import_torch

if TYPE_CHECKING:
    import torch

    from ..protocol.wire import Numbers
    from .cpu.decoder import Decoder
    from .lora.resident import ResidentAdapters
    from .pipeline.link import Stage
    from .tensor_parallel import TensorParallelGroup
    from .tier import TierReader
    from .vision.rows import VisionRows

MOST_SHOWN = 64  # rows in a dump
OUT_OF_MEMORY = "allocate memory"  # in what torch's CPU allocator says when it cannot


class StepRunner(Protocol):
    """What runs steps."""

    def run(self, step: Step) -> np.ndarray:
        """The tokens (int32) of the rows that sample, in the order of the step's rows."""

    @property
    def failed_rows(self) -> Numbers:
        """The rows of the last step that have failed, as StepDone has them: what they drew is no token of theirs."""


class WorkerActor(Actor):
    """Adapter between the rings and the CpuRunner."""

    def __init__(
        self,
        context: Context,
        runner: StepRunner,
        blocks: int,
        layout: KVLayout | None = None,
        tokens: int | None = None,
        adapters: ResidentAdapters | None = None,
    ) -> None:
        """`tokens` that the blocks hold, if it is not each its own; `adapters` of --enable-lora."""
        self.context = context
        self.adapters = adapters
        self.layout = layout or KVLayout()
        self.runner = runner
        self.blocks = blocks
        self.tokens = blocks * context.config.block_size if tokens is None else tokens
        self.tier: TierReader | None = None  # of --kv-offload
        self.vision: VisionRows | None = None  # of a model that sees pictures
        self.epoch = 0  # of the scheduler's view that the rows belong to; 0: none
        self.broken = False  # a step of the epoch failed, so that its rows are not what the scheduler thinks
        self.step = 0
        self._scheduler = context.system.scheduler_of(context.spec.engine)
        self.reports = context.system.is_reporter(context.spec)  # for its group: all who draw come to the same
        self._methods = WorkerMethods(self)
        self._last: Step | None = None
        self._dumped = False
        self._torch_profiler: TorchProfiler | None = None
        if context.config.worker == "model":
            context.profile.make_device = self._profile_device
        self._report_ready()

    def handle(self, message: ToWorker) -> None:
        """One message, done completely and answered at once: behind it the next plan may wait already."""
        if self.context.stopping:
            return
        match message:
            case Step():
                self._run(message)
            case Hello():
                self._report_ready()
            case LookAtSleep():
                self._look_at_sleep()
            case CallMethod():
                self.context.post(self._scheduler, self._methods.call(message))
            case LoadBlocks() if self.tier is not None:
                self.tier.load(message)
                self.context.post(self._scheduler, BlocksLoaded(message.number, self.context.spec.index))
            case ReadAdapter() if self.adapters is not None:
                self.adapters.read(message.adapter, message.path)
            case DropAdapter() if self.adapters is not None:
                self.adapters.drop(message.adapter)
            case ResetEncoderCache() if self.vision is not None:
                count = self.vision.encoder.cache.clear()
                self.context.log.info("the encoder cache was reset: embeddings of %d pictures dropped", count)
        self.context.flush()
        self.context.status.beat()

    def _look_at_sleep(self) -> None:
        """Its successor is parked; or the engine was woken before this life had to end, and must be met again."""
        if sleep_word(self.context).state.is_parked:
            self.context.log.info("the engine sleeps: weights and KV memory are given back")
            sys.exit(RENEW)
        self._report_ready()

    def do_work(self) -> int:
        """Adapters that have been read are there from the next step on; each of a group says so itself."""
        if self.adapters is None:
            return 0
        own, rank = self.context.incarnation, self.context.spec.index
        read = self.adapters.take_read()
        for adapter, problem in read:
            self.context.post(self._scheduler, AdapterRead(own, rank, adapter, problem))
        return len(read)

    def _profile_device(self) -> TorchProfiler:
        self._torch_profiler = TorchProfiler()
        return self._torch_profiler

    def most_drafts(self) -> int:
        """That a row may have in a step."""
        return count_drafts(self.context.config)

    def _report_ready(self) -> None:
        board, members = self.context.board, self.context.system.workers_of(self.context.spec.engine)
        replaced = all(board.ended(member.position) in NO_REQUEST for member in members)
        own = self.context.incarnation
        there = [] if self.adapters is None else self.adapters.there
        since = (
            self.context.kept_since if self.adapters is None else 0
        )  # rows would go on before their adapters are read
        self._post(WorkerReady(own, self.blocks, self.step, replaced, self.layout, self.most_drafts(), there, since))

    def _post(self, message: Message) -> None:
        if self.reports:
            self.context.post(self._scheduler, message)

    def _run(self, message: Step) -> None:
        if message.epoch != self.epoch:
            if message.step != 1:  # planned for the rows of an earlier incarnation; its scheduler will begin anew
                self.context.log.info("step %d of another epoch is dropped", message.step)
                return
            self.epoch, self.broken = message.epoch, False
        self.step, self._last = message.step, message
        if self.broken:
            self.fail(message, "an earlier step of its epoch failed")
        else:
            self.compute(message)

    def compute(self, message: Step) -> None:
        """Run a step of the epoch that is on."""
        start = time.perf_counter()
        try:
            tokens = self.runner.run(message)
        except (MemoryError, RuntimeError) as error:
            alone = self.context.config.workers == 1  # others would be in the middle of this step
            if not alone or (isinstance(error, RuntimeError) and OUT_OF_MEMORY not in str(error)):
                raise
            self.fail(message, str(error))
            return
        self.report_done(message, tokens, time.perf_counter() - start, self.runner.failed_rows)

    def report_done(self, message: Step, tokens: np.ndarray, seconds: float, failed_rows: Numbers) -> None:
        """A step has ended now; the arrays are as StepDone has them."""
        self._post(self.done(message, tokens, seconds, failed_rows))
        small = counts(message.num_rows, message.num_tokens)
        self.context.trace.add(time.monotonic_ns(), EventKind.STEP, int(seconds * 1e9), message.step, small)
        self.context.status.add(Gauge.STEPS, 1)
        self.context.status.add(Gauge.STEP_NS, int(seconds * 1e9))
        if self._torch_profiler is not None:
            self._torch_profiler.step()

    def done(self, message: Step, tokens: np.ndarray, seconds: float, failed_rows: Numbers) -> StepDone:
        """What the scheduler is told of a step that has ended."""
        return StepDone.make(message, tokens, seconds, failed_rows=failed_rows)

    def about_failure(self) -> dict[str, Any]:
        """The step that it was given last."""
        step = self._last
        if step is None:
            return {"step": "none yet"}
        pairs = zip(step.rows.tolist(), step.counts.tolist(), strict=True)
        table = self.context.table
        new = [
            f"row {one.row}: request {request_name(table, one.ref)}, {one.num_prompt_tokens} prompt tokens, "
            f"{one.num_computed_tokens} of {one.num_known_tokens} computed, blocks {one.blocks.tolist()[:MOST_SHOWN]}"
            for one in step.new_rows[:MOST_SHOWN]
        ]
        return {
            "step": {"epoch": step.epoch, "number": step.step, "rows": step.num_rows, "tokens": step.num_tokens},
            "plan": [f"row {row}: {count} tokens" for row, count in pairs][:MOST_SHOWN],
            "new rows": new,
            "new blocks": [str(one) for one in step.new_blocks.tolist()[:MOST_SHOWN]],
        }

    def _dump(self, reason: str) -> None:
        """Of the first step of this life that fails and is survived; one that is not is dumped by the loop."""
        error = sys.exception()
        if error is not None and not self._dumped:
            self._dumped = True
            self.context.log.error("step %d failed: %s", self.step, reason)
            write_dump(self.context, error, self.about_failure())

    def fail(self, message: Step, reason: str) -> None:
        """A step could not be computed, nor can those behind it."""
        self.broken = True
        self._dump(reason)
        self._post(StepFailed(message.epoch, message.step, reason))


def main(context: Context) -> None:
    """Load the model and run steps until told to stop."""
    if context.config.node_of(context.spec.index) != context.config.node_rank:
        from .pipeline.nodes import proxy

        proxy.main(context)
        return
    _drop_old_steps(context)
    if sleep_word(context).state.is_parked:
        run(ParkedWorker(context), context)
        return
    if context.config.worker == "scripted":
        from . import scripted

        run_worker(scripted.start(context))
        return
    gc.disable()  # it would go again and again through all that comes with torch, for a tenth of the time
    import_torch()
    import torch

    with torch.inference_mode():
        actor = load_weights(context, load)
        if isinstance(actor, ParkedWorker):
            run(actor, context)
        else:
            run_worker(actor)


def run_worker(actor: WorkerActor) -> None:
    """Run steps until told to stop."""
    context = actor.context
    context.status.set_gauge(Gauge.KV_TOKENS, actor.tokens)
    gc.freeze()  # what is there now stays: no step waits while it is looked through
    gc.enable()
    if context.config.headless:
        from .pipeline.nodes.remote import run_remote

        run_remote(actor)
    else:
        run(actor, context)


def start(context: Context) -> WorkerActor | ParkedWorker:
    """The worker in a process of all actors, parked where its engine sleeps."""
    if sleep_word(context).state.is_parked:
        return ParkedWorker(context)
    return load_weights(context, load)


def load(context: Context) -> WorkerActor:
    """The actor of the device that there is, its model loaded; ConfigError if model or memory cannot be had."""
    if context.model.pooling is not None:
        from .pooling import start as pooling_start

        return pooling_start.start(context)
    if context.model.encoder is not None:
        from .encoder_decoder import start as reading_start

        return reading_start.start(context)
    on_gpu = uses_gpu(context.config)
    check_options(context.config, on_gpu)
    if _speaks_for_all(context):
        from ..model.memory.machine import without_effect

        for words in without_effect(context.config, on_gpu):
            context.log.warning("%s", words)
    if not on_gpu:
        return _start_on_cpu(context)
    import_rest()
    from .gpu import start as gpu_start

    return gpu_start.start(context)


def _speaks_for_all(context: Context) -> bool:
    """What holds for all workers is said once."""
    return context.spec.index == context.spec.engine == 0


def uses_gpu(config: Config) -> bool:
    """--device; ConfigError if it wants what is not there."""
    import torch

    if config.device == "cuda":
        check_gpu(config)
    if config.device == "cuda" and not torch.cuda.is_available():
        raise ConfigError("--device cuda: torch finds no GPU here (nvidia-smi and torch.version.cuda may say why)")
    return config.device != "cpu" and torch.cuda.is_available()


def check_options(config: Config, on_gpu: bool) -> None:
    """ConfigError if one is for the other device, or for more devices than there are."""
    import torch

    check_device(config, on_gpu)
    count = torch.cuda.device_count() if on_gpu else 0
    if on_gpu and config.tensor_parallel_size > count:
        raise ConfigError(f"--tensor-parallel-size: there are {count} GPUs here")
    if on_gpu and (wanted := config.workers * config.engines) > count:
        raise ConfigError(f"--data-parallel-size: {wanted} GPUs are needed, and there are {count} here")


def import_early() -> None:
    """What is imported only as it runs, by whoever forks workers; that asks for no GPU, which cannot be forked."""
    import_torch()
    for name in ("models.weights", "memory", "cpu.executor", "cpu.memory.kv_memory", "cpu.runner", "speculative.actor"):
        importlib.import_module(f".{name}", __package__)


def import_late(config: Config) -> None:
    """All of that: who tries new code wants to know whether it can be had."""
    if config.worker != "model":
        return
    import_early()
    on_gpu = ("gpu.start", "gpu.runner", "gpu.actor") if uses_gpu(config) else ()
    for name in ("pooling.start", "encoder_decoder.start", *on_gpu):
        importlib.import_module(f".{name}", __package__)


def _drop_old_steps(context: Context) -> None:
    """Plans from before this incarnation speak of KV that is gone; one of them may be what ended the last one."""
    while context.inbox.drain(lambda message: None):
        context.inbox.commit()


def join_group(context: Context, device: torch.device | None = None) -> TensorParallelGroup | None:
    """The group of this worker, once all are there; None for one that has the whole model. `device`: its GPU."""
    from .tensor_parallel import TensorParallelGroup

    size = context.config.tensor_parallel_size
    if size == 1:
        return None
    return TensorParallelGroup(context.spec.index, size, *meeting_of(context), device, context.config.step_timeout)


def meeting_of(context: Context) -> tuple[int, int]:
    """(the descriptor of the file by which this worker's group meets, which life of the group this is)."""
    engine = context.spec.engine
    life = context.board.incarnation(context.system.workers_of(engine)[0].position)
    return context.files[context.system.meetings[engine]], life


def _start_on_cpu(context: Context) -> WorkerActor:
    import torch

    from .cpu.layers import native
    from .cpu.memory.kv_memory import kv_type, make_memory
    from .cpu.runner import CpuRunner
    from .lora.start import start_adapters
    from .models.weights import files_bytes, load_decoder
    from .pipeline.actor import StageWorkerActor
    from .pipeline.runner import make_stage_runner
    from .pipeline.start import describe_stage, join_stage, plan_worker_memory
    from .speculative.actor import SpeculativeWorkerActor, drafter_by_itself, load_drafter

    context.phase_ends(StartPhase.IMPORTS)
    config, log = context.config, context.log
    stage = join_stage(context, *meeting_of(context))
    group = join_group(context) if stage is None else stage.group
    peers = group or stage
    context.phase_ends(StartPhase.GROUP)
    engines = _engines_beside(context)
    cores = max(1, usable_cores() // engines)
    threads = config.threads or max(1, (usable_cores() - 1) // (config.local_workers * engines))
    log.info("kernels: %s", native.start(config.cpu_kernels, threads))
    if config.threads is None and config.workers == 1 and not config.deterministic:
        threads = native.useful_threads(cores, files_bytes(context.model.folder))
    torch.set_num_threads(threads)
    start = time.perf_counter()
    model = load_decoder(config, context.model, group, stage)
    vision = None
    if context.model.vision is not None:
        import_rest()
        from .vision.start import make_vision, media_source

        vision = make_vision(config, context.model, model, media_source(context))
    context.phase_ends(StartPhase.WEIGHTS)
    seconds, dtype = time.perf_counter() - start, str(model.dtype).removeprefix("torch.")
    name = f"{context.model.architecture}{describe_stage(model)}"
    log.info("%s in %s loaded in %.1f s, threads: %d", name, dtype, seconds, threads)
    if model.batch_invariant:
        log.info("a token has the same bits in every batch (--threads has to stay %d)", threads)
    drafter = load_drafter(config, context.model, group) or drafter_by_itself(config, model)
    context.phase_ends(StartPhase.DRAFTS)
    drafts = drafter.block_bytes if drafter else 0
    plan, whole = plan_worker_memory(config, model, context.model.max_model_len, drafts)
    plain = not (model.kv.states or plan.windows or (drafter is not None and drafter.block_bytes))
    kept, since = _find_memory(context, (model.kv, plan, kv_type(config, model)), plain, peers)
    option, room = kv_memory_room(config)
    if peers is not None:
        room = peers.minimum(room)
    if since:
        blocks = kept.blocks
    else:
        blocks = blocks_in(config, whole, context.model.max_model_len, option, room)
        if plain:
            kept.begin(blocks)
    warn_unused_memory(context, blocks, whole)
    words = plan.words(config, context.model.max_model_len, blocks, room)
    log.info("KV memory of %s%s: %s", kv_type(config, model).name, ", which was there" if since else "", words)
    memory = make_memory(config, model, plan, blocks, room, kept.take if plain else anonymous)
    context.kept_since = kept.since and max(kept.since, since)
    ids, rows = context.table.as_numpy().tokens, config.max_num_seqs
    verifier = drafter.make(config, blocks, ids.shape[1], model, group) if drafter else None
    context.phase_ends(StartPhase.KV_MEMORY)
    parts = request_readers(context, model.vocab_size)
    own = model, memory.blocks, ids, config.block_size, rows, *parts, verifier, memory.states, vision
    runner = CpuRunner(*own) if stage is None else make_stage_runner(stage, *own)
    tokens = plan.tokens(config, context.model.max_model_len, blocks)
    adapters = start_adapters(context, model, group)
    if adapters is not None:
        runner.lora = adapters.rows(rows)
    said = runner, blocks, memory.layout, tokens, adapters
    if stage is not None:
        return StageWorkerActor(context, stage, *said)
    actor = (SpeculativeWorkerActor if drafter else WorkerActor)(context, *said)
    actor.vision = vision
    if config.offloads:
        actor.tier = _offload(context, kept, model, plain)
    return actor


def _engines_beside(context: Context) -> int:
    """How many share the cores now. Where bits must not depend on that, all that there may be."""
    if context.config.deterministic:
        return context.config.engines
    workers = context.system.of_kind("worker")
    return max(1, len({one.engine for one in workers if not context.board.is_parked(one.position)}))


def _offload(context: Context, kept: KeptMemory, model: Decoder, plain: bool) -> TierReader | None:
    """--kv-offload, of memory whose blocks are all that there is to a prefix."""
    from .cpu.memory.kv_memory import kv_type
    from .tier import make_reader

    config, group = context.config, (context.spec.index, context.config.tensor_parallel_size)
    if not plain:
        if _speaks_for_all(context):
            context.log.warning("--kv-offload: it has no effect with a model or drafts that keep more than blocks")
        return None
    exact = config.threads if model.batch_invariant else None
    return make_reader(context, kept, model.kv, kv_type(config, model), str(model.dtype), group, exact)


def _find_memory(
    context: Context, what: object, plain: bool, group: TensorParallelGroup | Stage | None
) -> tuple[KeptMemory, int]:
    """The file for this worker's KV memory, made of `what` beside all that options say; and since which life it is the
    same for all of the group. 0: it is empty. Only what is `plain` can be gone on with by its blocks alone.
    """
    spec = context.spec
    life = context.board.incarnation(context.system.workers_of(spec.engine)[0].position)
    kept = KeptMemory(context.files[f"kv-{spec.name}"], digest_of(context.config, context.model.folder, what), life)
    since = kept.since if plain else 0
    if group is not None:
        since = -group.minimum(-since) if group.minimum(since) else 0
    if not since:
        kept.forget()
    return kept, since


def warn_unused_memory(context: Context, blocks: int, plan: KVMemory) -> None:
    """More KV memory was given than can be used: the rest is nobody's, which once is worth a line."""
    from ..model.memory.machine import unused_memory

    words = unused_memory(context.config, context.model.max_model_len, blocks, plan)
    if words and _speaks_for_all(context):
        context.log.warning("%s", words)


def request_readers(
    context: Context, words: int
) -> tuple[Callable[[int], Rendition], Logprobs | None, Callable[[], Matchers]]:
    """What a runner needs of requests: their renditions, where their logprobs go, and what makes their matchers."""
    decoder = msgspec.msgpack.Decoder(Rendition)

    def read_rendition(ref: int) -> Rendition:
        log_debug(context.log, "%s takes a row", context.table, ref)
        return decoder.decode(packed) if (packed := context.table.rendition(ref)) else Rendition()

    def make_matchers() -> Matchers:
        return Matchers(make_lltokenizer(load_tokenizer(context.model), words, context.model.end_tokens), words)

    reports = context.system.is_reporter(context.spec)
    area = Logprobs(context.files["logprobs"], *context.system.logprobs) if reports else None
    return read_rendition, area, make_matchers
