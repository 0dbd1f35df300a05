"""The worker of a model with an encoder and a decoder, on a CPU or a GPU; tokens are drawn by the CPU."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from actorserve.kernels.cpu.pool_memory import Pool

from ...model.memory.kv_memory import KVMemory
from ...model.memory.machine import blocks_in, kv_memory_room
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..actor import WorkerActor
from ..cpu.memory.kv_memory import make_memory, plan_memory
from ..cpu.memory.window_tables import TabledKV
from ..start.beside import computing_on
from ..start.kernels import use_kernels
from ..start.shared import request_readers, threads_of, token_bytes, warn_unused_memory
from ..torch_import import import_rest

TRIED = 3  # tokens of the decoder
if TYPE_CHECKING:
    from .model import EncoderDecoder
    from .rows_kv import AnyRowsKV


def start(context: Context, device: torch.device) -> WorkerActor:
    """The actor, its model loaded; ConfigError if model or memory cannot be had."""
    with computing_on(context.config, device):
        if device.type == "cpu":
            return _start(context, device)
        from ..gpu.compilations import compiling  # and with it Triton

        with compiling(context):
            return _start(context, device)


def _start(context: Context, device: torch.device) -> WorkerActor:
    config, info, log = context.config, context.model, context.log
    assert info.encoder is not None
    context.phase_ends(StartPhase.IMPORTS)
    context.phase_ends(StartPhase.GROUP)
    on_cpu = device.type == "cpu"
    threads = use_kernels(context, threads_of(context)) if on_cpu else threads_of(context)
    torch.set_num_threads(threads)
    import_rest()
    from .listening import Listening
    from .load import load_encoder_decoder  # and with it transformers
    from .runner import EncoderDecoderRunner

    begun = time.perf_counter()
    model = load_encoder_decoder(config, info, device)
    context.phase_ends(StartPhase.WEIGHTS)
    name, seconds = str(model.dtype).removeprefix("torch."), time.perf_counter() - begun
    place = f"threads: {threads}" if on_cpu else f"on {torch.cuda.get_device_name(device)}"
    log.info("%s in %s loaded in %.1f s, %s", info.architecture, name, seconds, place)
    context.phase_ends(StartPhase.DRAFTS)
    kv, blocks, plan = _host_memory(context, model) if on_cpu else _device_memory(context, model, device)
    context.phase_ends(StartPhase.KV_MEMORY)
    runner = EncoderDecoderRunner(
        *(model, info.encoder, kv, context.table.as_numpy().tokens, config.block_size),
        *(config.max_num_seqs, *request_readers(context, model.vocab_size)),
        sounds=_sounds(context) if info.encoder.speech is not None else None,
    )
    runner.logits_processors.token_bytes = partial(token_bytes, context)
    runner.logits_processors.mirostat = context.mirostat()
    if runner.sounds is not None:
        runner.listening = Listening(model, info.encoder, context.table, config.block_size, runner.sounds)
    return WorkerActor(context, runner, blocks, None, plan.tokens(config, info.max_model_len, blocks))


def _host_memory(context: Context, model: EncoderDecoder) -> tuple[Sequence[Pool], int, KVMemory]:
    config, length = context.config, context.model.max_model_len
    plan = plan_memory(config, model, length, 0)
    option, room = kv_memory_room(config)
    blocks = blocks_in(config, plan, length, option, room)
    warn_unused_memory(context, blocks, plan)
    context.log.info("KV memory: %s", plan.words(config, length, blocks, room))
    memory = make_memory(config, model, plan, blocks, room)
    assert not isinstance(memory.blocks, TabledKV)  # no layer of these sees a window
    return memory.blocks, blocks, plan


def _device_memory(context: Context, model: EncoderDecoder, device: torch.device) -> tuple[AnyRowsKV, int, KVMemory]:
    """What is left beside the largest steps."""
    from ..eager.kv import DeviceKV  # and with it Triton
    from ..eager.memory import give_memory
    from ..gpu.memory import make_pools
    from .load import shape_on_gpu

    config, encoder, length = context.config, context.model.encoder, context.model.max_model_len
    assert encoder is not None
    shape, size = shape_on_gpu(context.model, model.kv, model.passes.model.config), config.block_size
    speech = encoder.speech
    sound = None if speech is None else torch.zeros(1, speech.mels, speech.frames)

    def try_out() -> None:
        longest = max(length, encoder.room(size) + TRIED)
        kv = DeviceKV(make_pools(shape, 1, size, model.dtype, device), size, longest, device)
        model.try_out(encoder.longest, sound, kv, config.max_num_seqs, config.max_num_batched_tokens)

    return give_memory(context, shape, model.dtype, device, length, try_out)


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
