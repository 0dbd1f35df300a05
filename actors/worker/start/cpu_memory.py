"""KV memory of a worker on a CPU: how much, what an earlier life has left in it, and a tier beside it."""

from __future__ import annotations

from typing import NamedTuple

from ...model.memory.kv_memory import KVMemory, nothing_offloaded
from ...model.memory.machine import blocks_in, kv_memory_room
from ...runtime.process import Context
from ..cpu.decoder import Decoder
from ..cpu.layers import native
from ..cpu.memory.kv_memory import WorkerMemory, kv_type, make_memory
from ..kept_memory.file import KeptMemory, anonymous, digest_of
from ..kept_memory.tier import TierReader, make_reader
from ..pipeline.link import Stage
from ..pipeline.model import StageModel
from ..pipeline.start import plan_worker_memory
from ..tensor_parallel import TensorParallelGroup
from .shared import speaks_for_all, warn_unused_memory


class GivenMemory(NamedTuple):
    """That of this worker."""

    made: WorkerMemory
    blocks: int
    plan: KVMemory
    kept: KeptMemory
    plain: bool  # its blocks are all that there is to a prefix


def give_memory(
    context: Context, model: Decoder, drafts: int, peers: TensorParallelGroup | Stage | None
) -> GivenMemory:
    """As much as there is room for, or what is there still; `drafts`: bytes of a block of what makes such."""
    config, longest = context.config, context.model.max_model_len
    plan, whole = plan_worker_memory(config, model, longest, drafts)
    plain = not (model.kv.states or plan.windows or drafts)
    library = native.current()
    kept, since = _find_memory(context, (model.kv, plan, kv_type(config, model), _sums(model)), plain, peers)
    option, room = kv_memory_room(config, 0 if library is None else library.weights.mapped)
    if peers is not None:
        room = peers.minimum(room)
    if since:
        blocks = kept.blocks
    else:
        blocks = blocks_in(config, whole, longest, option, room)
        if plain:
            kept.begin(blocks)
    warn_unused_memory(context, blocks, whole)
    words = plan.words(config, longest, blocks, room)
    name = kv_type(config, model).name
    context.log.info("KV memory of %s%s: %s", name, ", which was there" if since else "", words)
    made = make_memory(config, model, plan, blocks, room, kept.take if plain else anonymous)
    context.kept_since = kept.since and max(kept.since, since)
    return GivenMemory(made, blocks, plan, kept, plain)


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


def make_tier(context: Context, memory: GivenMemory, model: Decoder) -> TierReader | None:
    """--kv-offload, of memory whose blocks are all that there is to a prefix."""
    config = context.config
    group = context.spec.index, config.tensor_parallel_size, config.pipeline_parallel_size
    if not memory.plain:
        if speaks_for_all(context):
            context.log.warning("%s", nothing_offloaded(bool(model.kv.states), memory.plan))
        return None
    exact = (config.threads, _sums(model)) if model.batch_invariant else None
    stages = model.stage_kvs if isinstance(model, StageModel) else [model.kv]
    kvs = [kv for kv in stages for _ in range(config.tensor_parallel_size)]
    return make_reader(context, memory.kept, kvs, kv_type(config, model), str(model.precision), group, exact)


def _sums(model: Decoder) -> str | None:
    """In whose order they are made, where that matters: other kernels have other bits."""
    if not model.batch_invariant:
        return None
    library = native.current()
    return "torch" if library is None else library.variant
