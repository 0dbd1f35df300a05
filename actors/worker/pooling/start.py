"""The worker of a model that pools: on a CPU or a GPU, by layers of transformers or of this server."""

from __future__ import annotations

import time
from functools import partial

import torch

from actorserve.shm.table.vectors import Vectors

from ...model.memory.machine import blocks_in, kv_memory_room
from ...model.pooling.spec import PoolingSpec
from ...options.config import Config
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..actor import WorkerActor
from ..cpu.layers import native
from ..cpu.memory.kv_memory import make_memory, plan_memory
from ..start.beside import computing_on
from ..start.shared import join_group, request_readers, threads_of, warn_unused_memory
from ..tensor_parallel import TensorParallelGroup
from ..torch_import import import_rest
from .decoder import hidden_shape, load_hidden, open_hidden
from .poolers import CPU, Pooler
from .runner import HiddenRunner, PoolingWriter


def start(context: Context, device: torch.device) -> WorkerActor:
    """The actor, its model loaded; ConfigError if model or memory cannot be had."""
    with computing_on(context.config, device):
        return _start(context, device)


def _start(context: Context, device: torch.device) -> WorkerActor:
    spec = context.model.pooling
    assert spec is not None
    context.phase_ends(StartPhase.IMPORTS)
    group = join_group(context)
    context.phase_ends(StartPhase.GROUP)
    threads = threads_of(context)
    torch.set_num_threads(threads)
    if device.type == "cpu":
        context.log.info("kernels: %s", _choose_kernels(context.config, threads))
    if not spec.base:
        return _without_kv(context, spec, device)
    return _with_kv(context, spec, group) if device.type == "cpu" else _with_device_kv(context, spec, device)


def _choose_kernels(config: Config, threads: int) -> str:
    """Steps have many tokens: there our own kernels are quicker than torch's with tiles (AMX), in 8 bits. Measured
    (1536 x 384, µs for 32, 256 and 1,024 rows): AMX 65, 845, 4,262; torch 165, 1,280, 4,018; AVX-512 187, 1,997, 7,618.
    """
    asked = config.cpu_kernels != "auto"
    if asked or config.quantization == "int8":
        words = native.start(config.cpu_kernels, threads)
        library = native.current()
        if asked or library is None or library.variant == "amx":
            return words
        native.stop()
    return "torch (quicker for prompts)"


def _vectors(context: Context) -> Vectors:
    vectors = context.vectors()
    assert vectors is not None
    return vectors


def _without_kv(context: Context, spec: PoolingSpec, device: torch.device) -> WorkerActor:
    """Whole prompts; blocks are numbers."""
    import_rest()
    if spec.dual is not None:
        return _dual(context, spec, device)
    from .load import load_encoder  # and with it transformers
    from .whole_prompts import EncoderRunner

    begun = time.perf_counter()
    model = load_encoder(context.config, context.model, spec, device)
    _loaded(context, model.model.dtype, begun, device)
    log = context.table.as_numpy().tokens
    writer = PoolingWriter(Pooler(spec, model.scores if spec.head else None, device), _vectors(context), log)
    if device.type != "cpu":
        model.try_out(context.config.max_num_batched_tokens, context.model.max_model_len)
    read_rendition = request_readers(context, context.model.vocab_size)[0]
    runner = EncoderRunner(model, writer, context.config.max_num_seqs, read_rendition)
    context.phase_ends(StartPhase.DRAFTS)
    context.phase_ends(StartPhase.KV_MEMORY)
    return WorkerActor(context, runner, context.system.max_blocks)


def _dual(context: Context, spec: PoolingSpec, device: torch.device) -> WorkerActor:
    """Texts and pictures, by an encoder each."""
    from ..vision.start import media_source
    from .dual_encoder import DualEncoderRunner, load_dual_encoder

    begun, source = time.perf_counter(), media_source(context)
    texts, pictures = load_dual_encoder(context.config, context.model, spec, source, device)
    _loaded(context, pictures.dtype, begun, device)
    writer = PoolingWriter(Pooler(spec, None), _vectors(context), context.table.as_numpy().tokens)
    runner = DualEncoderRunner(texts, pictures, writer, source, context.config.max_num_seqs)
    context.phase_ends(StartPhase.DRAFTS)
    context.phase_ends(StartPhase.KV_MEMORY)
    actor = WorkerActor(context, runner, context.system.max_blocks)
    actor.vision = runner
    return actor


def _with_kv(context: Context, spec: PoolingSpec, group: TensorParallelGroup | None) -> WorkerActor:
    """A decoder, with KV memory as one that generates has it."""
    config, length = context.config, context.served.max_tokens
    begun = time.perf_counter()
    model, head = load_hidden(config, context.model, spec, group)
    vision = None
    if context.model.vision is not None:
        import_rest()
        from ..vision.start import make_vision, media_source

        vision = make_vision(config, context.model, model, media_source(context))
    _loaded(context, model.dtype, begun, CPU)
    context.phase_ends(StartPhase.DRAFTS)
    model.reads_windows_alone = False  # a prompt that is computed whole needs all of its blocks at once
    plan = plan_memory(config, model, length, 0)
    option, room = kv_memory_room(config)
    if group is not None:
        room = group.minimum(room)
    blocks = blocks_in(config, plan, length, option, room)
    warn_unused_memory(context, blocks, plan)
    context.log.info("KV memory: %s", plan.words(config, length, blocks, room))
    memory = make_memory(config, model, plan, blocks, room)
    log = context.table.as_numpy().tokens
    writer = PoolingWriter(Pooler(spec, head), _vectors(context), log)
    context.phase_ends(StartPhase.KV_MEMORY)
    parts = request_readers(context, model.vocab_size)
    own = model, memory.blocks, log, config.block_size, config.max_num_seqs, *parts
    runner = HiddenRunner(writer, *own, vision=vision, reports=context.system.is_reporter(context.spec))
    actor = WorkerActor(context, runner, blocks, memory.layout, plan.tokens(config, length, blocks))
    actor.vision = vision
    return actor


def _with_device_kv(context: Context, spec: PoolingSpec, device: torch.device) -> WorkerActor:
    """The same on a GPU, kernel by kernel: steps are prompts, whose kernels are long enough for that."""
    import_rest()
    from ..gpu.compilations import check_launcher, compiling  # and with it Triton

    with compiling(context):
        check_launcher()
        return _eager(context, spec, device)


def _eager(context: Context, spec: PoolingSpec, device: torch.device) -> WorkerActor:
    from ..eager.decoder import check_decoder, make_decoder
    from ..eager.memory import give_memory
    from ..gpu.pictures import try_tower

    config, info, begun = context.config, context.model, time.perf_counter()
    shape = hidden_shape(config, info, spec)
    check_decoder(config, shape)
    read, head = open_hidden(config, info, spec, shape, device)
    model = make_decoder(config, info, shape, read, device)
    vision = None
    if info.vision is not None:
        from ..vision.start import load_vision, media_source

        vision = load_vision(config, info, model.dtype, media_source(context), device)
    _loaded(context, model.dtype, begun, device)
    context.phase_ends(StartPhase.DRAFTS)
    most, length = max(config.max_num_batched_tokens, info.max_model_len), context.served.max_tokens
    try_out = partial(model.try_out, most, config.block_size)
    pictures = try_tower(config, info, vision, large=True)
    memory = give_memory(context, model.model.shape, model.dtype, device, length, try_out, pictures)
    context.phase_ends(StartPhase.KV_MEMORY)
    log = context.table.as_numpy().tokens
    writer = PoolingWriter(Pooler(spec, head, device), _vectors(context), log)
    own = model, memory.kv, log, config.block_size, config.max_num_seqs, *request_readers(context, model.vocab_size)
    tokens = memory.plan.tokens(config, length, memory.blocks)
    actor = WorkerActor(context, HiddenRunner(writer, *own, vision=vision), memory.blocks, None, tokens)
    actor.vision = vision
    return actor


def _loaded(context: Context, dtype: torch.dtype, begun: float, device: torch.device) -> None:
    context.phase_ends(StartPhase.WEIGHTS)
    seconds, name = time.perf_counter() - begun, str(dtype).removeprefix("torch.")
    on_cpu = device.type == "cpu"
    place = f"threads: {torch.get_num_threads()}" if on_cpu else f"on {torch.cuda.get_device_name(device)}"
    context.log.info("%s in %s loaded in %.1f s to pool, %s", context.model.architecture, name, seconds, place)
