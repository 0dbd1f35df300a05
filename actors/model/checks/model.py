"""What can be seen of a model and of options before any actor is started, in a second and without torch.

Who starts actors asks `find_model`; what it refuses, no actor is started for. What a GPU has, and whether memory is
still free when weights are loaded, the worker alone knows.
"""

from __future__ import annotations

from pathlib import Path

from actorserve.shm.free_memory import available_bytes

from ...options.also import OPTION as ALSO
from ...options.also import model_configs, without
from ...options.config import Config, ConfigError
from ...options.fields import flag
from ...options.serving.models import FOLDER
from ...sound.installed import MISSING, can_decode
from ..architecture import Architecture
from ..info import ModelInfo, resolve_model, with_tokenizer
from ..memory.dtypes import NUMBERS, Number, dtype_on_cpu, kv_type_of
from ..memory.machine import blocks_in, kv_memory_room, lack_of, weight_bytes
from ..pipeline.stages import plan_stages, worker_shapes
from ..sharding import shard_shape
from ..tokenizers.tokenizer import find_templates, special_tokens
from ..tokenizers.tokenizer_files import check_tokenizer
from ..weights.weight_files import check_weights
from .combinations import check_adapted, check_hidden_states, check_pooling, check_prompt_embeds, check_vision
from .device import check_beside_gpu, check_device, check_drafts_on_gpu, check_gpu
from .drafts import check_drafts, find_draft_model, find_head, head_block_bytes, read_shape

NO_TEMPLATE = (
    "the model has no chat template: /v1/completions works, and /v1/chat/completions, /v1/responses and /v1/messages "
    "need --chat-template"
)


def find_model(config: Config) -> ModelInfo:
    """The model, for which actors may be started. ConfigError says what is wrong with its folder or the options."""
    model = with_tokenizer(config, resolve_model(config))
    if model.tokenizer_folder:
        check_tokenizer(Path(model.tokenizer_folder))
        special_tokens(model)
        find_templates(config, model)
    if config.worker == "model":
        _check_worker(config, model)
    return model


def find_models(config: Config) -> tuple[Config, list[ModelInfo]]:
    """MODEL, and those of --also. Of those that a folder has, which nobody has named, such as cannot be served are left
    out of the options; one that was named is a ConfigError.
    """
    configs, infos, unserved = model_configs(config), [], {}
    for number, own in enumerate(configs):
        try:
            infos.append(find_model(own))
        except ConfigError as error:
            if number < len(configs) - config.models_found:
                raise type(error)(f"{ALSO} {own.model}: {error}") if number else error from None
            unserved[number], last = str(error), error
    if not infos:
        raise type(last)(f"{flag(FOLDER)}: none of its models can be served: {own.served_names()[0]}: {last}")
    return (without(config, unserved) if unserved else config), infos


def _check_worker(config: Config, model: ModelInfo) -> None:
    """What the worker would refuse later."""
    if config.enable_prompt_embeds:
        check_prompt_embeds(config, model)
    if config.enable_return_hidden_states:
        check_hidden_states(config, model)
    if model.pooling is not None:
        check_pooling(config, model, model.pooling)
        return
    if model.encoder is not None:
        check_beside_gpu(config, model)
        check_adapted(config, model, on_gpu=False)
        if model.encoder.speech is not None and not can_decode():
            raise ConfigError(f"model: {model.architecture} listens: {MISSING}")
        return
    shape = read_shape(config, model)
    if model.vision is not None:
        check_vision(config, model, model.vision)
    if shape is None:
        check_adapted(config, model)
        if (drafts := find_draft_model(config, model)) is not None:
            check_drafts(*drafts)
        return
    part = shard_shape(shape, config.tensor_parallel_size, config.enable_expert_parallel)
    drafts = find_draft_model(config, model)
    if config.load_format != "dummy":
        check_weights(Path(model.folder), shape)
    head = find_head(config, model, shape)
    beside = 0 if drafts is None else check_drafts(*drafts)
    if check_gpu(config):
        check_drafts_on_gpu(config)
        return  # if torch finds it, too
    check_device(config, on_gpu=False)
    if head is not None:
        beside = head_block_bytes(head.shape, config.block_size, kv_type_of(config, shape))
    _check_memory(config, model, (shape, part), beside)


def _check_memory(config: Config, model: ModelInfo, shapes: tuple[Architecture, Architecture], beside: int) -> None:
    """ConfigError if weights, or KV blocks for one request, do not fit. `shapes`: of the model, and of a worker's part;
    `beside`: bytes of what drafts in each block.
    """
    shape, part = shapes
    number, kind = NUMBERS[dtype_on_cpu(config, shape)], kv_type_of(config, shape)
    if config.load_format == "dummy":  # those of a file lie in it, and need not all be in memory
        _check_room(part, number)
    parts = [stage.kv for stage in worker_shapes(config, shape)]
    plans = plan_stages(parts, config, model.max_model_len, number.itemsize, beside, kind=kind)
    blocks_in(config, plans.whole, model.max_model_len, *kv_memory_room(config))


def _check_room(shape: Architecture, number: Number) -> None:
    size, room = weight_bytes(shape, number), available_bytes()
    if size > room:
        raise lack_of(size)(f"model: its weights take {size:,} bytes of memory, and {room:,} are free")
