"""How the worker of a GPU begins: weights, a trial of what steps need, KV memory from what is left, then graphs."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from actorserve.kernels.pages import LARGEST_GROUP, LARGEST_HEAD
from actorserve.kernels.triton.drafts import Lookup

from ...model.architecture import Architecture
from ...model.checks.drafts import draft_refused, find_draft_model, find_head
from ...model.config_json import find_architecture
from ...model.gguf.folder import is_gguf
from ...model.heads.formats import BlockShape, MedusaShape, RecurrentShape
from ...model.info import ModelInfo, read_json
from ...model.memory.kv_memory import KVMemory, WindowPlan
from ...model.memory.machine import architecture_on_gpu, check_layers_on_gpu, check_quantization, usable_cores
from ...options.config import Config, ConfigError
from ...options.objects.speculative import (
    DraftModelOptions,
    HeadOptions,
    NgramOptions,
    count_drafts,
    read_speculative,
)
from ...protocol.step import KVLayout
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..cpu.prompt_embeds import RowEmbeds
from ..kept_memory.device import needed
from ..models.weights import dtype_on_gpu, open_head, open_weights
from ..start.libraries import settle_libraries
from ..start.shared import engines_beside, join_group, request_readers, threads_of, warn_unused_memory
from ..tensor_parallel import TensorParallelGroup
from ..torch_import import import_rest
from .actor import GpuWorkerActor
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
from .drafts.medusa import MedusaDraftingRunner, MedusaHead, load_heads
from .drafts.recurrent import RecurrentDraftingRunner, RecurrentHead
from .drafts.speculation import DraftingRunner
from .executor import GpuModel
from .graphs import CaptureError, capture_sizes, mixed_sizes
from .kept import KeptOnDevice, held_bytes, is_plain
from .layers.fused import FUSED
from .layers.moe import check_experts
from .layers.scratch import attention_of
from .layers.sources import check_rounded_inputs, few_bits
from .layers.varied_layers import make_model
from .lora.sites import GpuLoraSites
from .lora.start import make_sites, start_adapters
from .memory import (
    OF_CAPTURE,
    RESERVE,
    await_freed_memory,
    blocks_in,
    check_block_size,
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

log = logging.getLogger("worker")
ANY = "(--device cpu takes any)"

Drafter = GpuModel | list[MedusaHead] | RecurrentHead | BlockDrafter  # what makes drafts beside the model


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
            model, draft, vision = _load_all(context, device, group)
            runner = make_runner(context, model, draft, vision)
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
    windows = plan.windows
    layout = KVLayout() if windows is None else KVLayout(window=windows.window, window_tables=len(windows.tables) - 1)
    tokens = plan.tokens(context.config, context.model.max_model_len, blocks)
    actor = GpuWorkerActor(context, runner, blocks, layout, tokens, adapters)
    actor.vision = vision
    return actor


def _load_all(
    context: Context, device: torch.device, group: TensorParallelGroup | None
) -> tuple[GpuModel, Drafter | None, VisionRows | None]:
    """The model, what makes drafts beside it, and what sees pictures for it."""
    begun = time.perf_counter()
    torch.set_num_threads(threads_of(context))  # what a checkpoint has in few bits is put in order on the host
    model = _load(context.config, context.model, device, group, make_sites(context.config, device))
    draft = _load_draft(context, device) or _load_head(context, model)
    vision = _load_vision(context, model)
    context.phase_ends(StartPhase.WEIGHTS)
    dtype, seconds = str(model.dtype).removeprefix("torch."), time.perf_counter() - begun
    context.log.info(
        "%s in %s loaded onto %s in %.1f s",
        *(context.model.architecture, dtype, torch.cuda.get_device_name(device), seconds),
    )
    return model, draft, vision


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


def check_shape(config: Config, shape: Architecture) -> None:
    """ConfigError unless the kernels can take this model."""
    if shape.moe is not None:
        check_experts(shape.moe)
    check_layers_on_gpu(shape)
    if shape.latent is not None and config.kv_cache_dtype == "fp8":
        raise ConfigError("--kv-cache-dtype fp8: the model keeps latents (MLA), in the type that it computes in: auto")
    check_block_size(config)
    layer = attention_of(shape)
    for width in (layer.key_dim, layer.value_dim):
        if width % 16 or width > LARGEST_HEAD:
            raise ConfigError(f"model: heads of {width} numbers; on a GPU multiples of 16 up to {LARGEST_HEAD} {ANY}")
    spec = shape.vision
    if spec is not None and spec.whole_pictures and any(own is not None and own < spec.span for own in shape.windows):
        raise ConfigError(
            f"model: layers see fewer tokens back than the {spec.span} of a picture, which see one another; that is "
            "computed on a CPU (--device cpu)"
        )
    group = layer.heads // layer.kv_heads
    if group > LARGEST_GROUP:
        raise ConfigError(f"model: {group} heads share one of keys; on a GPU {LARGEST_GROUP} can {ANY}")


def choose_dtype(config: Config, shape: Architecture) -> torch.dtype:
    """That in which the model is computed; ConfigError if its weights cannot be kept as options want them."""
    check_quantization(config, shape, on_gpu=True)
    return dtype_on_gpu(config, shape.stored_dtype)


def _load(
    config: Config,
    info: ModelInfo,
    device: torch.device,
    group: TensorParallelGroup | None = None,
    lora: GpuLoraSites | None = None,
) -> GpuModel:
    values = read_json(Path(info.folder) / "config.json")
    shape = find_architecture(values, config.model_impl, config.quantization)
    if shape is None:
        from .adapted.load import load_on_gpu  # with transformers, which takes seconds

        return load_on_gpu(config, info, device)
    check_shape(config, shape)
    dtype = choose_dtype(config, shape)
    check_rounded_inputs(config, dtype, device)
    shape, stays = architecture_on_gpu(config, shape, is_gguf(info.folder))
    own, get = open_weights(config, info, shape, group, device)
    with few_bits(config, info, shape, stays, group, device) as stored:
        given = dtype, info.max_model_len, device, group, FUSED, config.deterministic, lora, stored
        return make_model(own, get, *given)


def _load_draft(context: Context, device: torch.device) -> GpuModel | None:
    """The model that makes drafts, if one does; ConfigError if it cannot be had."""
    given = read_speculative(context.config)
    if not isinstance(given, DraftModelOptions):
        return None
    found = find_draft_model(context.config, context.model)
    assert found is not None
    try:
        return _load(*found, device)
    except ConfigError as error:
        raise draft_refused(given, error) from None


def _load_head(context: Context, model: GpuModel) -> list[MedusaHead] | RecurrentHead | BlockDrafter | None:
    """The head that makes drafts, or several that do so together, if any do; ConfigError if it cannot be had."""
    config, given = context.config, read_speculative(context.config)
    if not isinstance(given, HeadOptions):
        return None
    head = find_head(config, context.model, model.shape)
    assert head is not None
    drafts, length = count_drafts(config), context.model.max_model_len
    if isinstance(head.shape, MedusaShape):
        return load_heads(head.shape, open_head(head), model, drafts)
    try:
        check_shape(config, head.shape)
        if isinstance(head.shape, BlockShape):
            return BlockDrafter(head.shape, open_head(head), model, length, drafts)
        assert isinstance(head.shape, RecurrentShape), "there is no other"
        return RecurrentHead(head.shape, open_head(head), model, length)
    except ConfigError as error:
        raise draft_refused(given, error) from None


def _load_vision(context: Context, model: GpuModel) -> VisionRows | None:
    """The tower is where the model is: its embeddings need not be sent, and a CPU would take seconds for a picture."""
    if context.model.vision is None:
        return None
    import_rest()
    from ..vision.start import load_vision, media_source  # with transformers, which takes seconds

    return load_vision(context.config, context.model, model.dtype, media_source(context), model.device)


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
    mixed = () if is_eager(config, model) else mixed_sizes(rows, tokens, drafts is not None)
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
    try_tower(config, context.model, runner.pictures, large=False)  # before kernels are compiled, which takes longer
    windows = plan_tables(config, model.shape, length)
    beside = _make_pools(config, runner, 1, windows)
    plan = plan_memory(config, model.shape, length, kind, beside)
    _compile(context, runner, group)
    kept = KeptOnDevice(context, model.device, is_plain(plan, bool(beside)), model.shape.kv, plan, kind)
    if found := kept.found(group):
        _make_pools(config, runner, found, windows, kept.take)
        log.info("KV memory of %s, which was there: %d blocks", str(kind).removeprefix("torch."), found)
        return found, plan
    pictures = try_tower(config, context.model, runner.pictures, large=True)
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
    layers = model.shape.layers * pool_bytes(model.shape, blocks, config.block_size, kind)
    _make_pools(config, runner, blocks, windows, kept.begin(blocks, needed(layers)))
    warn_unused_memory(context, blocks, plan)
    sizes = (v / 2**30 for v in (total, taken, peak, graphs))
    log.info("of %.1f GiB, %.2f GiB are used, a step takes %.2f and CUDA graphs will take %.2f", *sizes)
    log.info("KV memory: %s", plan.words(config, length, blocks, room))
    return blocks, plan
