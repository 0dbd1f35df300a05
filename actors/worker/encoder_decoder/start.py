"""The worker of a model with an encoder and a decoder, on a CPU."""

from __future__ import annotations

import time
from collections.abc import Callable

import torch
from torch import Tensor

from ...model.memory.machine import blocks_in, kv_memory_room
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..actor import WorkerActor
from ..cpu.memory.kv_memory import make_memory, plan_memory
from ..cpu.memory.window_tables import TabledKV
from ..start.kernels import use_kernels
from ..start.shared import request_readers, threads_of, warn_unused_memory
from ..torch_import import import_rest


def start(context: Context) -> WorkerActor:
    """The actor, its model loaded; ConfigError if model or memory cannot be had."""
    config, info, log = context.config, context.model, context.log
    assert info.encoder is not None
    context.phase_ends(StartPhase.IMPORTS)
    context.phase_ends(StartPhase.GROUP)
    threads = use_kernels(context, threads_of(context))
    torch.set_num_threads(threads)
    import_rest()
    from .listening import Listening
    from .load import load_encoder_decoder  # and with it transformers
    from .runner import EncoderDecoderRunner

    begun = time.perf_counter()
    model = load_encoder_decoder(config, info)
    context.phase_ends(StartPhase.WEIGHTS)
    name = str(model.dtype).removeprefix("torch.")
    log.info("%s in %s loaded in %.1f s, threads: %d", info.architecture, name, time.perf_counter() - begun, threads)
    context.phase_ends(StartPhase.DRAFTS)
    plan = plan_memory(config, model, info.max_model_len, 0)
    option, room = kv_memory_room(config)
    blocks = blocks_in(config, plan, info.max_model_len, option, room)
    warn_unused_memory(context, blocks, plan)
    log.info("KV memory: %s", plan.words(config, info.max_model_len, blocks, room))
    memory = make_memory(config, model, plan, blocks, room)
    assert not isinstance(memory.blocks, TabledKV)  # no layer of these sees a window
    context.phase_ends(StartPhase.KV_MEMORY)
    runner = EncoderDecoderRunner(
        *(model, info.encoder, memory.blocks, context.table.as_numpy().tokens, config.block_size),
        *(config.max_num_seqs, *request_readers(context, model.vocab_size)),
        sounds=_sounds(context) if info.encoder.speech is not None else None,
    )
    if runner.sounds is not None:
        runner.listening = Listening(model, info.encoder, context.table, config.block_size, runner.sounds)
    return WorkerActor(context, runner, blocks, memory.layout, plan.tokens(config, info.max_model_len, blocks))


def _sounds(context: Context) -> Callable[[int], Tensor]:
    """Where renderers lay what is heard."""
    area, encoder = context.sounds(), context.model.encoder
    assert area is not None and encoder is not None and encoder.speech is not None
    shape = (1, encoder.speech.mels, encoder.speech.frames)

    def read(ref: int) -> Tensor:
        found = area.read(ref)
        if found is None:  # its prompt is published behind them: the slot is another's by now
            return torch.zeros(shape)
        return torch.frombuffer(bytearray(found[2]), dtype=torch.float32).view(shape)

    return read
