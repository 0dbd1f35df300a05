"""What the starts on all devices, and of all kinds of models, have in common."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import msgspec

from actorserve.shm.table.logprobs import Logprobs

from ...grammar.matchers import Matchers
from ...grammar.vocabulary import make_lltokenizer
from ...model.memory.kv_memory import KVMemory
from ...model.memory.machine import unused_memory, usable_cores
from ...model.tokenizers.token_bytes import bytes_of_tokens
from ...model.tokenizers.tokenizer import load_tokenizer
from ...protocol.request import Rendition
from ...runtime.in_flight import log_debug
from ...runtime.process import Context

if TYPE_CHECKING:
    import torch

    from ..tensor_parallel import TensorParallelGroup


def speaks_for_all(context: Context) -> bool:
    """What holds for all workers of a model is said once."""
    return context.spec.index == 0 and context.spec.engine == context.served.engines[0]


def join_group(context: Context, device: torch.device | None = None) -> TensorParallelGroup | None:
    """The group of this worker, once all are there; None for one that has the whole model. `device`: its GPU."""
    from ..tensor_parallel import TensorParallelGroup

    size = context.config.tensor_parallel_size
    if size == 1:
        return None
    return TensorParallelGroup(context.spec.index, size, *meeting_of(context), device, context.config.step_timeout)


def meeting_of(context: Context) -> tuple[int, int]:
    """(the descriptor of the file by which this worker's group meets, which life of the group this is)."""
    engine = context.spec.engine
    life = context.board.incarnation(context.system.workers_of(engine)[0].position)
    return context.files[context.system.meetings[engine]], life


def engines_beside(context: Context) -> int:
    """How many share the cores now. Where bits must not depend on that, all that there may be."""
    sizes = sorted((len(one.engines) for one in context.system.models), reverse=True)
    most = sum(sizes[: context.config.models_max or None])  # are loaded at once
    if context.config.deterministic:
        return min(len(context.system.local_engines), most)
    workers = context.system.of_kind("worker")
    return max(1, min(most, len({one.engine for one in workers if not context.board.is_parked(one.position)})))


def threads_of(context: Context) -> int:
    """Compute threads of a worker: --threads, or its part of all cores but one."""
    config = context.config
    return config.threads or max(1, (usable_cores() - 1) // (config.local_workers * engines_beside(context)))


def warn_unused_memory(context: Context, blocks: int, plan: KVMemory) -> None:
    """More KV memory was given than can be used: the rest is nobody's, which once is worth a line."""
    words = unused_memory(context.config, context.model.max_model_len, blocks, plan)
    if words and speaks_for_all(context):
        context.log.warning("%s", words)


def token_bytes(context: Context) -> Callable[[int], bytes]:
    """The bytes of one token. Reads the tokenizer."""
    return bytes_of_tokens(load_tokenizer(context.model))


def request_readers(
    context: Context, words: int
) -> tuple[Callable[[int], Rendition], Logprobs | None, Callable[[], Matchers]]:
    """What a runner needs of requests: their renditions, where their logprobs go, and what makes their matchers."""
    decoder = msgspec.msgpack.Decoder(Rendition)

    def read_rendition(ref: int) -> Rendition:
        log_debug(context.log, "%s takes a row", context.table, ref)
        return decoder.decode(packed) if (packed := context.table.rendition(ref)) else Rendition()

    def make_matchers() -> Matchers:
        lltokenizer = make_lltokenizer(load_tokenizer(context.model), words, context.model.end_tokens)
        return Matchers(lltokenizer, words, threads_of(context))

    reports = context.system.is_reporter(context.spec)
    area = Logprobs(context.files["logprobs"], *context.system.files.logprobs) if reports else None
    if area is not None:
        area.is_current = context.table.is_current
    return read_rendition, area, make_matchers
