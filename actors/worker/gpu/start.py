"""How the worker of a GPU begins: weights, a trial of what steps need, KV memory from what is left, then graphs."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

import torch

from actorserve.kernels.triton.drafts import Lookup

from ...model.memory.kv_memory import KVMemory
from ...model.memory.machine import usable_cores
from ...model.memory.windows import WindowPlan
from ...options.config import Config, ConfigError
from ...options.objects.speculative import NgramOptions, count_drafts, read_speculative
from ...protocol.step import KVLayout
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..cpu.prompt_embeds import RowEmbeds
from ..kept_memory.device import needed
from ..kept_memory.on_gpu import KeptOnDevice, held_bytes, is_plain
from ..start.libraries import settle_libraries
from ..start.shared import engines_beside, join_group, request_readers, token_bytes, warn_unused_memory
from ..tensor_parallel import TensorParallelGroup
from .actor import GpuWorkerActor
from .adapted.runner import StatefulRunner
from .buffers import Sizes
from .compilations import (
    begin_to_read_triton,
    check_launcher,
    compile_ahead,
    report_late_compilations,
    writable_cache,
)
from .drafts.ahead import CachedDraftingRunner
from .drafts.blocks import BlockDrafter, BlockDraftingRunner
from .drafts.draft_model import ModelDraftingRunner
from .drafts.medusa import MedusaDraftingRunner
from .drafts.recurrent import RecurrentDraftingRunner, RecurrentHead
from .drafts.speculation import DraftingRunner
from .executor import GpuModel
from .graphs import CaptureError, capture_sizes, mixed_sizes
from .load import Drafter, load_all
from .lora.start import start_adapters
from .memory import (
    OF_CAPTURE,
    RESERVE,
    await_freed_memory,
    blocks_in,
    check_given_bytes,
    device_memory,
    graph_bytes,
    is_out_of_memory,
    kv_block_bytes,
    kv_kind,
    make_pools,
    measure,
    out_of_memory,
    plan_memory,
    plan_tables,
    pool_bytes,
    room_for_blocks,
)
from .pictures import try_tower
from .runner import GpuRunner

if TYPE_CHECKING:
    from ..vision.rows import VisionRows


def start(context: Context) -> GpuWorkerActor:
    """The actor, ready to run steps; ConfigError if the model, or memory for it, cannot be had."""
    spec = context.spec
    device = torch.device("cuda", context.system.first_device(spec.engine) + spec.index)
    model: GpuModel | None = None
    try:
        torch.cuda.set_device(device)
        settle_libraries()
        context.phase_ends(StartPhase.IMPORTS)
        begin_to_read_triton()
        with writable_cache(context.log):
            check_launcher()
            await_freed_memory(context.config, device, held_bytes(context))
            group = join_group(context, device)
            context.phase_ends(StartPhase.GROUP)
            model, draft, vision = load_all(context, device, group)
            runner = make_runner(context, model, draft, vision)
            runner.sampler.logits_processors.token_bytes = partial(token_bytes, context)
            blocks, plan = _give_memory(context, runner, group)
            context.phase_ends(StartPhase.KV_MEMORY)
            if not is_eager(context.config, model):
                _capture(context, runner)
    except RuntimeError as error:
        if (said := explained(context, error, with_weights=model is not None)) is None:
            raise
        raise said from None
    adapters = start_adapters(context, runner, group)
    report_late_compilations(context)
    layout = _layout(runner, plan)
    tokens = plan.tokens(context.config, context.model.max_model_len, blocks)
    actor = GpuWorkerActor(context, runner, blocks, layout, tokens, adapters)
    actor.vision = vision
    return actor


def _layout(runner: GpuRunner, plan: KVMemory) -> KVLayout:
    """How memory is kept, as the scheduler has to know."""
    window, tables = (0, 0) if plan.windows is None else (plan.windows.window, len(plan.windows.tables) - 1)
    if isinstance(runner, StatefulRunner):
        return KVLayout(True, runner.states.snapshots, window, tables, plan.by_token)
    return KVLayout(window=window, window_tables=tables)


def _compile(context: Context, runner: GpuRunner, group: TensorParallelGroup | None) -> None:
    """All kernels, side by side, before any is run. Where that fails, each is compiled when it is launched first, which
    says itself what it lacks. A group's members begin together: their sums are run. Engines share the cores, too."""
    if group is not None:
        group.wait_for_all()
    beside = context.config.local_workers * engines_beside(context)
    begun, threads = time.perf_counter(), max(1, usable_cores() // beside)
    try:
        count = compile_ahead(runner.device, runner.profile_steps, runner.try_graphs, threads=threads)
    except Exception as error:
        if is_out_of_memory(error):
            raise
        context.log.warning("kernels are compiled one after the other: %s: %s", type(error).__name__, error)
        return
    context.log.info("%d kernels compiled, or found as they were, in %.1f s", count, time.perf_counter() - begun)


def _capture(context: Context, runner: GpuRunner) -> None:
    begun = time.perf_counter()
    count = runner.capture()
    context.phase_ends(StartPhase.GRAPHS)
    context.log.info("%d CUDA graphs captured in %.1f s", count, time.perf_counter() - begun)


def explained(context: Context, error: RuntimeError, with_weights: bool) -> ConfigError | None:
    """What to say of an error of the start, if options can help."""
    if is_out_of_memory(error):
        return out_of_memory(error, with_weights)
    if not isinstance(error, CaptureError) or not error.of_capture:
        return None
    context.log.error("a step could not be captured", exc_info=error)
    reason = str(error).splitlines()[0].removesuffix(".")
    return ConfigError(f"{reason}. --enforce-eager serves without graphs, with slower steps")


def is_eager(config: Config, model: GpuModel) -> bool:
    """Are steps started kernel by kernel?"""
    return config.enforce_eager or model.eager


def make_runner(
    context: Context, model: GpuModel, draft: Drafter | None = None, vision: VisionRows | None = None
) -> GpuRunner:
    """What runs steps; with drafts of `draft`, found in the text, or without any."""
    config, drafts = context.config, read_speculative(context.config)
    rows, tokens = config.max_num_seqs, config.max_num_batched_tokens
    length, windows = context.model.max_model_len, plan_tables(config, model.shape, context.model.max_model_len)
    slots = 0 if model.lora is None else model.lora.count
    sizes = Sizes(rows, tokens, length, config.block_size, count_drafts(config), slots)
    if windows is not None:
        sizes = sizes._replace(tables=len(windows.tables), window=windows.window)
        model.table_of = windows.table_of(model.shape.kv)
    capture = capture_sizes(config.cudagraph_capture_sizes, rows)
    alone = is_eager(config, model) or model.groups is not None  # steps with prompts are started kernel by kernel
    mixed = () if alone else mixed_sizes(rows, tokens, drafts is not None)
    ids = context.table.as_numpy().tokens
    area = context.prompt_embeds()
    embeds = None if area is None or not context.model.hidden else RowEmbeds(area, rows)
    given = model, ids, sizes, capture, *request_readers(context, model.shape.vocab_size), mixed
    if isinstance(draft, list):
        return MedusaDraftingRunner(*given, lookup=Lookup(1, 1, sizes.drafts), heads=draft)
    if isinstance(draft, BlockDrafter):
        return BlockDraftingRunner(*given, lookup=Lookup(1, 1, sizes.drafts), drafter=draft)
    if isinstance(draft, RecurrentHead):
        return RecurrentDraftingRunner(*given, lookup=Lookup(1, 1, sizes.drafts), head=draft)
    if draft is not None:
        return ModelDraftingRunner(*given, lookup=Lookup(1, 1, sizes.drafts), draft=draft)
    if isinstance(drafts, NgramOptions):
        lookup = Lookup(*drafts.lookup, sizes.drafts)
        one = config.tensor_parallel_size == 1
        return DraftingRunner(*given, lookup=lookup, adaptive=one, vision=vision, embeds=embeds)
    if model.groups is not None:
        return StatefulRunner(model.groups, *given)
    return GpuRunner(*given, vision=vision, embeds=embeds)


def _make_pools(
    config: Config,
    runner: GpuRunner,
    blocks: int,
    windows: WindowPlan | None,
    take: Callable[[int], torch.Tensor] | None = None,
) -> int:
    """KV memory of so many blocks, of what makes drafts, too, if it has some; bytes of a block of that. `take`: out of
    what is kept.
    """
    size, device = config.block_size, runner.device
    shape, kind = runner.model.shape, kv_kind(config, runner.model.dtype, device)
    runner.pools = make_pools(shape, blocks, size, kind, device, windows, take)
    if not isinstance(runner, CachedDraftingRunner):
        return 0
    shape, dtype, spare = runner.draft_memory
    kind = kv_kind(config, dtype, device)
    runner.draft_pools = make_pools(shape, blocks + spare, size, kind, device)
    return kv_block_bytes(shape, size, kind)


def _give_memory(context: Context, runner: GpuRunner, group: TensorParallelGroup | None) -> tuple[int, KVMemory]:
    """Try the largest steps out, and give what they leave to KV memory; (the number of its blocks, how it is)."""
    config, model, log, length = context.config, runner.model, context.log, context.model.max_model_len
    kind = kv_kind(config, model.dtype, model.device)
    vision = None if runner.pictures is None else runner.pictures.vision
    try_tower(config, context.model, vision, large=False)  # before kernels are compiled, which takes longer
    windows = plan_tables(config, model.shape, length)
    beside = _make_pools(config, runner, 1, windows)
    plan = plan_memory(config, model.shape, length, kind, beside)
    _compile(context, runner, group)
    kept = KeptOnDevice(context, model.device, is_plain(plan, bool(beside)), model.shape.kv, plan, kind)
    if found := kept.found(group):
        _make_pools(config, runner, found, windows, kept.take)
        log.info("KV memory of %s, which was there: %d blocks", str(kind).removeprefix("torch."), found)
        return found, plan
    pictures = try_tower(config, context.model, vision, large=True)
    peak, used = measure(model.device, runner.profile_steps)
    graphs = 0 if is_eager(config, model) else graph_bytes(runner)
    context.phase_ends(StartPhase.PROFILE)
    total = device_memory(model.device)[1]
    taken = used + pictures
    room = room_for_blocks(config, total, taken, peak + graphs)
    blocks = blocks_in(config, plan, length, room)
    left = total - taken - peak - graphs
    if words := check_given_bytes(config, plan, blocks, left + (OF_CAPTURE if graphs else 0), left - RESERVE):
        context.log.warning("%s", words)
    if group is not None:
        blocks = group.minimum(blocks)
    layers = pool_bytes(model.shape, blocks, config.block_size, kind)
    _make_pools(config, runner, blocks, windows, kept.begin(blocks, needed(layers)))
    if isinstance(runner, StatefulRunner):
        runner.give_states(plan.snapshots(config, room))
    warn_unused_memory(context, blocks, plan)
    sizes = (v / 2**30 for v in (total, taken, peak, graphs))
    log.info("of %.1f GiB, %.2f GiB are used, a step takes %.2f and CUDA graphs will take %.2f", *sizes)
    log.info("KV memory: %s", plan.words(config, length, blocks, room))
    return blocks, plan
