"""The worker of a model that pools, on a CPU."""

from __future__ import annotations

import time

import torch

from actorserve.shm.table.vectors import Vectors

from ...model.memory.machine import blocks_in, kv_memory_room, usable_cores
from ...model.pooling.spec import PoolingSpec
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..actor import WorkerActor
from ..cpu.memory.kv_memory import make_memory, plan_memory
from ..start.shared import request_readers, warn_unused_memory
from ..torch_import import import_rest
from .decoder import load_hidden
from .poolers import Pooler
from .runner import HiddenRunner, PoolingWriter


def start(context: Context) -> WorkerActor:
    """The actor, its model loaded; ConfigError if model or memory cannot be had."""
    spec = context.model.pooling
    assert spec is not None
    context.phase_ends(StartPhase.IMPORTS)
    context.phase_ends(StartPhase.GROUP)
    torch.set_num_threads(context.config.threads or max(1, usable_cores() - 1))
    return (_with_kv if spec.base else _without_kv)(context, spec)


def _vectors(context: Context) -> Vectors:
    vectors = context.vectors()
    assert vectors is not None
    return vectors


def _without_kv(context: Context, spec: PoolingSpec) -> WorkerActor:
    """Whole prompts; blocks are numbers."""
    import_rest()
    from .load import load_encoder  # and with it transformers
    from .whole_prompts import EncoderRunner

    begun = time.perf_counter()
    model = load_encoder(context.config, context.model, spec)
    _loaded(context, model.model.dtype, begun)
    log = context.table.as_numpy().tokens
    writer = PoolingWriter(Pooler(spec, model.scores if spec.head else None), _vectors(context), log)
    read_rendition = request_readers(context, context.model.vocab_size)[0]
    runner = EncoderRunner(model, writer, context.config.max_num_seqs, read_rendition)
    context.phase_ends(StartPhase.DRAFTS)
    context.phase_ends(StartPhase.KV_MEMORY)
    return WorkerActor(context, runner, context.system.max_blocks)


def _with_kv(context: Context, spec: PoolingSpec) -> WorkerActor:
    """A decoder, with KV memory as one that generates has it."""
    config, length = context.config, context.system.max_tokens
    begun = time.perf_counter()
    model, head = load_hidden(config, context.model, spec)
    _loaded(context, model.dtype, begun)
    context.phase_ends(StartPhase.DRAFTS)
    model.reads_windows_alone = False  # a prompt that is computed whole needs all of its blocks at once
    plan = plan_memory(config, model, length, 0)
    option, room = kv_memory_room(config)
    blocks = blocks_in(config, plan, length, option, room)
    warn_unused_memory(context, blocks, plan)
    context.log.info("KV memory: %s", plan.words(config, length, blocks, room))
    memory = make_memory(config, model, plan, blocks, room)
    log = context.table.as_numpy().tokens
    writer = PoolingWriter(Pooler(spec, head), _vectors(context), log)
    context.phase_ends(StartPhase.KV_MEMORY)
    parts = request_readers(context, model.vocab_size)
    runner = HiddenRunner(writer, model, memory.blocks, log, config.block_size, config.max_num_seqs, *parts)
    return WorkerActor(context, runner, blocks, memory.layout, plan.tokens(config, length, blocks))


def _loaded(context: Context, dtype: torch.dtype, begun: float) -> None:
    context.phase_ends(StartPhase.WEIGHTS)
    seconds, name = time.perf_counter() - begun, str(dtype).removeprefix("torch.")
    text = "%s in %s loaded in %.1f s to pool, threads: %d"
    context.log.info(text, context.model.architecture, name, seconds, torch.get_num_threads())
