"""How the worker of a CPU begins: cores, weights, what makes drafts, KV memory, and what runs steps on them."""

from __future__ import annotations

import time
from functools import partial
from typing import TYPE_CHECKING

import torch

from ...model.memory.machine import usable_cores
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..actor import WorkerActor
from ..cpu.decoder import Decoder
from ..cpu.executor import CpuModel
from ..cpu.hidden_states import HiddenStatesWriter
from ..cpu.layers import native
from ..cpu.prompt_embeds import RowEmbeds
from ..cpu.runner import CpuRunner
from ..lora.start import start_adapters
from ..models.weights import files_bytes, load_decoder
from ..pipeline.actor import StageWorkerActor
from ..pipeline.link import Stage
from ..pipeline.runner import make_stage_runner
from ..pipeline.start import describe_stage, join_stage
from ..plugins.rows import Plugins
from ..plugins.worker import Worker
from ..speculative.actor import LoadedDrafter, SpeculativeWorkerActor, drafter_by_itself, load_drafter
from ..tensor_parallel import TensorParallelGroup
from ..torch_import import import_rest
from .cpu_memory import GivenMemory, give_memory, make_tier
from .expert_balance import balance_experts
from .kernels import promises_bits, use_kernels
from .shared import engines_beside, join_group, meeting_of, request_readers, threads_of, token_bytes

if TYPE_CHECKING:
    from ..vision.rows import VisionRows


def start(context: Context, own: Worker | None = None) -> WorkerActor:
    """The actor, ready to run steps; ConfigError if the model, or memory for it, cannot be had.

    `own` is the object of --worker-cls.
    """
    if own is not None:
        own.init_device()
    context.phase_ends(StartPhase.IMPORTS)
    config = context.config
    stage = join_stage(context, *meeting_of(context))
    group = join_group(context) if stage is None else stage.group
    context.phase_ends(StartPhase.GROUP)
    model, vision = _load_model(context, _use_cores(context), group, stage, own)
    drafter = load_drafter(config, context.model, group) or drafter_by_itself(config, model)
    context.phase_ends(StartPhase.DRAFTS)
    memory = give_memory(context, model, drafter.block_bytes if drafter else 0, group or stage)
    runner = _make_runner(context, model, memory, drafter, group, stage, vision)
    tokens = memory.plan.tokens(config, context.model.max_model_len, memory.blocks)
    adapters = start_adapters(context, model, group)
    if adapters is not None:
        runner.lora = adapters.rows(config.max_num_seqs)
    said = runner, memory.blocks, memory.made.layout, tokens, adapters
    tier = make_tier(context, memory, model) if config.offloads else None
    if stage is not None:
        staged = StageWorkerActor(context, stage, *said)
        staged.use(own)
        staged.tier = tier
        return staged
    actor = (SpeculativeWorkerActor if drafter else WorkerActor)(context, *said)
    actor.use(own)
    actor.vision, actor.tier = vision, tier
    return actor


def _use_cores(context: Context) -> int:
    """Choose kernels, and the number of threads, which this gives."""
    config, promised = context.config, promises_bits(context)
    threads = use_kernels(context, threads_of(context), promised)
    settled = config.deterministic or (promised and native.current() is None)  # torch's sums may follow from it
    if config.threads is None and config.workers == 1 and not settled:
        cores = max(1, usable_cores() // engines_beside(context))
        threads = native.useful_threads(cores, files_bytes(context.model.folder))
    torch.set_num_threads(threads)
    return threads


def _load_model(
    context: Context, threads: int, group: TensorParallelGroup | None, stage: Stage | None, own: Worker | None
) -> tuple[Decoder, VisionRows | None]:
    """The model, and what sees pictures for it, if it does."""
    config, log, start = context.config, context.log, time.perf_counter()
    load = partial(load_decoder, config, context.model, group, stage)
    model = load() if own is None else own.load_model(load)
    if config.enable_eplb and group is not None and isinstance(model, CpuModel):
        balance_experts(config, context.model, model, group)
    vision = None
    if context.model.vision is not None:
        import_rest()
        from ..vision.start import make_vision, media_source

        vision = make_vision(config, context.model, model, media_source(context))
    context.phase_ends(StartPhase.WEIGHTS)
    seconds, dtype = time.perf_counter() - start, str(model.precision).removeprefix("torch.")
    name = f"{context.model.architecture}{describe_stage(model)}"
    log.info("%s in %s loaded in %.1f s, threads: %d", name, dtype, seconds, threads)
    if model.batch_invariant:
        log.info("a token has the same bits in every batch (--threads has to stay %d)", threads)
    return model, vision


def _make_runner(
    context: Context,
    model: Decoder,
    memory: GivenMemory,
    drafter: LoadedDrafter | None,
    group: TensorParallelGroup | None,
    stage: Stage | None,
    vision: VisionRows | None,
) -> CpuRunner:
    """What runs steps: of the whole model, or of this stage."""
    config = context.config
    ids, rows = context.table.as_numpy().tokens, config.max_num_seqs
    verifier = drafter.make(config, memory.blocks, ids.shape[1], model, group) if drafter else None
    context.phase_ends(StartPhase.KV_MEMORY)
    parts = request_readers(context, model.vocab_size)
    made = memory.made
    own = model, made.blocks, ids, config.block_size, rows, *parts, verifier, made.states, vision
    runner = CpuRunner(*own) if stage is None else make_stage_runner(stage, *own)
    if (embeds := context.prompt_embeds()) is not None and context.model.hidden and (stage is None or not stage.index):
        runner.embeds = RowEmbeds(embeds, rows)
    states = context.hidden_states() if context.system.is_reporter(context.spec) else None
    if states is not None and isinstance(model, CpuModel):
        runner.hidden_states = HiddenStatesWriter(states, model.norm, context.table.is_current)
    runner.logits_processors.token_bytes = partial(token_bytes, context)
    runner.logits_processors.mirostat = context.mirostat()
    if config.changes_logits:
        runner.logits_processors.plugins = Plugins(config, context.model)
    return runner
