"""What a GPU's worker computes with: the model, what makes drafts beside it, and what sees pictures for it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from actorserve.kernels.pages import LARGEST_GROUP, LARGEST_HEAD
from actorserve.kernels.triton.attention.indexer import MOST_HEADS, WIDEST, has_room

from ...model.architecture import Architecture
from ...model.checks.drafts import draft_refused, find_draft_model, find_head
from ...model.config_json import find_architecture
from ...model.gguf.folder import is_gguf
from ...model.heads.formats import BlockShape, MedusaShape, RecurrentShape
from ...model.info import ModelInfo, read_json
from ...model.memory.dtypes import architecture_on_gpu, check_quantization
from ...model.shapes import IndexShape
from ...model.vision.spec import VisionSpec
from ...options.config import Config, ConfigError
from ...options.objects.speculative import DraftModelOptions, HeadOptions, count_drafts, read_speculative
from ...runtime.process import Context
from ...telemetry.startup import StartPhase
from ..models.weights import dtype_on_gpu, open_head, open_weights
from ..start.shared import threads_of
from ..tensor_parallel import TensorParallelGroup
from ..torch_import import import_rest
from .drafts.blocks import BlockDrafter
from .drafts.medusa import MedusaHead, load_heads
from .drafts.recurrent import RecurrentHead
from .executor import GpuModel
from .layers.fused import FUSED
from .layers.moe import check_experts
from .layers.scratch import attention_of
from .layers.sources import check_rounded_inputs, few_bits
from .layers.varied_layers import make_model
from .lora.sites import GpuLoraSites
from .lora.start import make_sites
from .memory import check_block_size

if TYPE_CHECKING:
    from ..vision.rows import VisionRows

ANY = "(--device cpu takes any)"

Drafter = GpuModel | list[MedusaHead] | RecurrentHead | BlockDrafter  # what makes drafts beside the model


def load_all(
    context: Context, device: torch.device, group: TensorParallelGroup | None
) -> tuple[GpuModel, Drafter | None, VisionRows | None]:
    """The model, what makes drafts beside it, and what sees pictures for it."""
    begun = time.perf_counter()
    torch.set_num_threads(threads_of(context))  # what a checkpoint has in few bits is put in order on the host
    model = load_model(context.config, context.model, device, group, make_sites(context.config, device))
    draft = _load_draft(context, device) or _load_head(context, model)
    vision = _load_vision(context, model)
    context.phase_ends(StartPhase.WEIGHTS)
    dtype, seconds = str(model.dtype).removeprefix("torch."), time.perf_counter() - begun
    context.log.info(
        "%s in %s loaded onto %s in %.1f s",
        *(context.model.architecture, dtype, torch.cuda.get_device_name(device), seconds),
    )
    return model, draft, vision


def load_model(
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
    check_index_room(shape, dtype, device)
    shape, stays = architecture_on_gpu(config, shape, is_gguf(info.folder))
    own, get = open_weights(config, info, shape, group, device)
    with few_bits(config, info, shape, stays, group, device) as stored:
        given = dtype, info.max_model_len, device, group, FUSED, config.deterministic, lora, stored
        return make_model(own, get, *given)


def check_shape(config: Config, shape: Architecture) -> None:
    """ConfigError unless the kernels can take this model."""
    if shape.moe is not None:
        check_experts(shape.moe)
    check_kept(config, shape, shape.vision)
    layer = attention_of(shape)
    if shape.latent is not None and shape.latent.index is not None:
        check_index(shape.latent.index, shape.latent.turning)
    for width in (layer.key_dim - layer.beside, layer.value_dim):
        if width % 16 or width > LARGEST_HEAD:
            raise ConfigError(f"model: heads of {width} numbers; on a GPU multiples of 16 up to {LARGEST_HEAD} {ANY}")
    group = layer.heads // layer.kv_heads
    if group > LARGEST_GROUP:
        raise ConfigError(f"model: {group} heads share one of keys; on a GPU {LARGEST_GROUP} can {ANY}")


def check_kept(config: Config, shape: Architecture, vision: VisionSpec | None) -> None:
    """ConfigError unless what any model keeps of tokens, and sees of pictures, can be had there."""
    check_block_size(config)
    if config.kv_cache_dtype == "fp8" and any(layer is not None and layer.values_in_keys for layer in shape.kv.layers):
        raise ConfigError("--kv-cache-dtype fp8: the model keeps latents (MLA), in the type that it computes in: auto")
    span = vision.span if vision is not None and vision.whole_pictures else 0
    if any(own is not None and own < span for own in shape.windows):
        raise ConfigError(
            f"model: layers see fewer tokens back than the {span} of a picture, which see one another; that is "
            "computed on a CPU (--device cpu)"
        )


def check_index(index: IndexShape, turning: int) -> None:
    """ConfigError unless kernels can choose tokens by heads of this shape."""
    if index.heads > MOST_HEADS or not turning < index.dim <= WIDEST:
        heads = f"index_n_heads = {index.heads} and index_head_dim = {index.dim}"
        most = f"up to {MOST_HEADS} heads, of more than {turning} (qk_rope_head_dim) and up to {WIDEST} numbers"
        raise ConfigError(f"model: {heads}; on a GPU {most} {ANY}")


def check_index_room(shape: Architecture, dtype: torch.dtype, device: torch.device) -> None:
    """ConfigError unless a program on this device has room for what chooses tokens."""
    index = None if shape.latent is None else shape.latent.index
    if index is None or has_room(index.heads, index.dim, dtype, device):
        return
    heads = f"index_n_heads = {index.heads} and index_head_dim = {index.dim} in {str(dtype).removeprefix('torch.')}"
    less = "; --dtype bfloat16 takes half of it" if dtype == torch.float32 else ""
    raise ConfigError(f"model: {heads} take more shared memory than a program has on this GPU{less} {ANY}")


def choose_dtype(config: Config, shape: Architecture) -> torch.dtype:
    """That in which the model is computed; ConfigError if its weights cannot be kept as options want them."""
    check_quantization(config, shape, on_gpu=True)
    return dtype_on_gpu(config, shape.stored_dtype)


def _load_draft(context: Context, device: torch.device) -> GpuModel | None:
    """The model that makes drafts, if one does; ConfigError if it cannot be had."""
    given = read_speculative(context.config)
    if not isinstance(given, DraftModelOptions):
        return None
    found = find_draft_model(context.config, context.model)
    assert found is not None
    try:
        return load_model(*found, device)
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
