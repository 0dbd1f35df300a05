"""What can be seen of a model and of options before any actor is started, in a second and without torch.

Who starts actors asks `find_model`; what it refuses, no actor is started for. What a GPU has, and whether memory is
still free when weights are loaded, the worker alone knows.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from ..options.also import OPTION as ALSO
from ..options.also import model_configs
from ..options.config import Config, ConfigError
from ..options.objects.speculative import (
    OPTION,
    DraftModelOptions,
    Eagle3Options,
    EagleOptions,
    HeadOptions,
    LookupOptions,
    MedusaOptions,
    MtpOptions,
    SuffixOptions,
    read_speculative,
)
from ..sound.installed import MISSING, can_decode
from .architecture import Architecture
from .config_json import find_architecture, read_architecture, weights_method
from .heads.checkpoints import MEDUSA_FILES, Head, read_eagle, read_medusa, read_mtp
from .heads.formats import RecurrentShape, Shape
from .info import ModelInfo, read_json, resolve_model, with_tokenizer
from .memory.kv import KV_TYPES, KVSpec, KVType
from .memory.machine import (
    NUMBERS,
    Number,
    available_bytes,
    blocks_in,
    count_blocks,
    dtype_on_cpu,
    kv_memory_room,
    kv_type_on_cpu,
    may_have_gpu,
    weight_bytes,
)
from .names import find_folder
from .pipeline.stages import plan_stages, worker_shapes
from .pooling.choice import native_values
from .pooling.spec import PoolingSpec
from .sharding import shard_shape
from .tokenizers.tokenizer import find_templates, special_tokens
from .tokenizers.tokenizer_files import check_tokenizer
from .values import Values
from .vision.spec import VisionSpec
from .weights.weight_files import check_weights, find_hidden_weights, read_weights

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


def find_models(config: Config) -> tuple[ModelInfo, list[ModelInfo]]:
    """MODEL, and those of --also."""
    first, also = find_model(config), []
    for own in model_configs(config)[1:]:
        try:
            also.append(find_model(own))
        except ConfigError as error:
            raise ConfigError(f"{ALSO} {own.model}: {error}") from None
    return first, also


def find_draft_model(config: Config, model: ModelInfo) -> tuple[Config, ModelInfo] | None:
    """The draft model that --speculative-config names, and the options to load it with."""
    given = read_speculative(config)
    if not isinstance(given, DraftModelOptions):
        return None
    own = msgspec.structs.replace(
        config,
        model=given.model,
        revision=None,
        tokenizer=None,
        max_model_len=None,
        deterministic=False,  # no draft changes a token, whatever its bits
        enable_expert_parallel=False,
    )
    try:
        found = resolve_model(own)
        if found.vocab_size != model.vocab_size:
            raise ConfigError(f"it has {found.vocab_size} words, and {model.folder} has {model.vocab_size}")
    except ConfigError as error:
        raise draft_refused(given, error) from None
    return own, msgspec.structs.replace(found, max_model_len=model.max_model_len)


def find_head(config: Config, model: ModelInfo, target: Architecture) -> Head | None:
    """The head that --speculative-config names, where it names one; `target` is the model's architecture."""
    given = read_speculative(config)
    if given is None or isinstance(given, LookupOptions | DraftModelOptions):
        return None
    try:
        return _read_head(given, model, target)
    except ConfigError as error:
        raise draft_refused(given, error) from None


def _read_head(given: HeadOptions, model: ModelInfo, target: Architecture) -> Head:
    if isinstance(given, MtpOptions):
        return read_mtp(Path(model.folder), target)
    folder = find_folder(given.model, None, files=MEDUSA_FILES if isinstance(given, MedusaOptions) else ())
    if not folder.is_dir():
        raise ConfigError(f"model: {folder} is a GGUF file; heads are read of safetensors and PyTorch's files")
    if isinstance(given, MedusaOptions):
        return read_medusa(folder, target, given.num_speculative_tokens)
    assert isinstance(given, EagleOptions | Eagle3Options)
    return read_eagle(folder, target, isinstance(given, Eagle3Options))


def kv_type_of(config: Config, shape: Architecture) -> KVType:
    """How a model keeps keys and values on a CPU."""
    if config.kv_cache_dtype == "int8" and shape.latent is not None:
        raise ConfigError("--kv-cache-dtype int8: the model keeps latents (MLA); float16 keeps half of float32's bytes")
    return kv_type_on_cpu(config, dtype_on_cpu(config, shape), shape.quantization.computes_in is not None)


def block_bytes(kv: KVSpec, block_size: int, kind: KVType) -> int:
    """The size of a KV block of this type."""
    return kv.block_bytes(block_size, kind.itemsize, kind.scale_bytes)


def head_block_bytes(shape: Shape, block_size: int, kind: KVType) -> int:
    """The size of a KV block of a head."""
    return block_bytes(shape.kv, block_size, kind) if isinstance(shape, RecurrentShape) else 0


def draft_refused(given: DraftModelOptions | HeadOptions, error: ConfigError) -> ConfigError:
    """The same, and that it is about what drafts."""
    about = "method: mtp" if isinstance(given, MtpOptions) else f"model: {given.model}"
    reason = str(error).removeprefix("model: ")
    if reason.startswith("num_speculative_tokens"):
        return ConfigError(f"{OPTION}: {reason}")
    return ConfigError(f"{OPTION}: {about}: {reason}")


def check_device(config: Config, on_gpu: bool) -> None:
    """ConfigError if an option is for the other device."""
    if not on_gpu and config.kv_cache_dtype not in ("auto", *KV_TYPES):
        raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype}: on a GPU only; on a CPU {', '.join(KV_TYPES)}")
    if on_gpu and config.kv_cache_dtype == "int8":
        raise ConfigError("--kv-cache-dtype int8: on a CPU only; on a GPU auto or fp8")
    if on_gpu and config.pipeline_parallel_size > 1:
        raise ConfigError(
            "--pipeline-parallel-size: stages are for a CPU as yet (--device cpu); on GPUs --tensor-parallel-size "
            "divides a model"
        )
    if on_gpu:
        _check_only_on_cpu(config)
    given = read_speculative(config) if on_gpu else None
    if isinstance(given, SuffixOptions):
        raise ConfigError(f"{OPTION}: method: suffix is for a CPU only (--device cpu); ngram is nearest to it")
    if isinstance(given, DraftModelOptions | HeadOptions) and config.tensor_parallel_size > 1:
        raise ConfigError(f"{OPTION}: method: ngram only with several GPUs (--tensor-parallel-size above 1)")


def _check_only_on_cpu(config: Config) -> None:
    """ConfigError if an option is given of which the worker of a GPU would do nothing."""
    for option, given in (
        ("--enable-eplb", config.enable_eplb),
        ("--enable-prompt-embeds", config.enable_prompt_embeds),
        ("--logits-processors", bool(config.logits_processors)),
        ("--logits-processor-pattern", config.logits_processor_pattern is not None),
        ("--worker-cls", config.worker_cls is not None),
    ):
        if given:
            raise ConfigError(f"{option}: on a CPU as yet (--device cpu)")


def check_gpu(config: Config) -> bool:
    """May there be a GPU that is to be used? ConfigError if it must be, and there is no driver of one."""
    there = may_have_gpu()
    if config.device == "cuda" and not there:
        raise ConfigError("--device cuda: there is no GPU here that may be used (no driver, or CUDA_VISIBLE_DEVICES)")
    return config.device != "cpu" and there


def _check_worker(config: Config, model: ModelInfo) -> None:
    """What the worker would refuse later."""
    if config.enable_prompt_embeds:
        _check_prompt_embeds(config, model)
    if model.pooling is not None:
        check_pooling(config, model, model.pooling)
        return
    if model.encoder is not None:
        check_adapted(config, model)
        if model.encoder.speech is not None and not can_decode():
            raise ConfigError(f"model: {model.architecture} listens: {MISSING}")
        return
    shape = _read_shape(config, model)
    if shape is None:
        check_adapted(config, model)
        if (drafts := find_draft_model(config, model)) is not None:
            _check_drafts(*drafts)
        return
    if model.vision is not None:
        check_vision(config, model, model.vision)
    part = shard_shape(shape, config.tensor_parallel_size, config.enable_expert_parallel)
    drafts = find_draft_model(config, model)
    if config.load_format != "dummy":
        check_weights(Path(model.folder), shape)
    head = find_head(config, model, shape)
    beside = 0
    if drafts is not None:
        beside = _check_drafts(*drafts)
    if check_gpu(config):
        if isinstance(read_speculative(config), SuffixOptions):
            raise ConfigError(f"{OPTION}: method: suffix is for a CPU only (--device cpu); ngram is nearest to it")
        return  # if torch finds it, too
    check_device(config, on_gpu=False)
    number, kind = NUMBERS[dtype_on_cpu(config, shape)], kv_type_of(config, shape)
    if head is not None:
        beside = head_block_bytes(head.shape, config.block_size, kind)
    if config.load_format == "dummy":  # those of a file lie in it, and need not all be in memory
        _check_room(part, number)
    parts = [stage.kv for stage in worker_shapes(config, shape)]
    plans = plan_stages(parts, config, model.max_model_len, number.itemsize, beside, kind=kind)
    blocks_in(config, plans.whole, model.max_model_len, *kv_memory_room(config))


def _check_room(shape: Architecture, number: Number) -> None:
    size, room = weight_bytes(shape, number), available_bytes()
    if size > room:
        raise ConfigError(f"model: its weights take {size:,} bytes of memory, and {room:,} are free")


def _check_drafts(config: Config, model: ModelInfo) -> int:
    """The same for the draft model; returns the bytes of a KV block in it."""
    given = read_speculative(config)
    assert isinstance(given, DraftModelOptions)
    shape = _read_shape(config, model)
    if shape is None:
        raise ConfigError(
            f"{OPTION}: model: {given.model}: {model.architecture} cannot make drafts; a model whose layers are "
            "this server's own can"
        )
    if config.load_format != "dummy":
        try:
            check_weights(Path(model.folder), shape)
        except ConfigError as error:
            raise draft_refused(given, error) from None
    return block_bytes(shape.kv, config.block_size, kv_type_of(config, shape))


def check_pooling(config: Config, model: ModelInfo, spec: PoolingSpec) -> None:
    """ConfigError if an option cannot be had with a model that pools, or its weights are not what they should be."""
    if config.device == "cuda":
        raise ConfigError(f"--device cuda: {model.architecture} pools, which is done on a CPU (--device cpu)")
    for option, given in (
        ("--tensor-parallel-size", config.tensor_parallel_size > 1),
        ("--pipeline-parallel-size", config.pipeline_parallel_size > 1),
        ("--deterministic", config.deterministic),
        (OPTION, config.speculative_config is not None),
        ("--enable-lora", config.enable_lora),
    ):
        if given:
            raise ConfigError(f"{option}: not with a model that pools ({model.architecture}); leave the option out")
    check_device(config, on_gpu=False)
    folder = Path(model.folder)
    if not spec.base:
        if read_json(folder / "config.json").get("quantization_config") is not None:
            raise ConfigError(
                f"model: {model.architecture}: quantised weights are not read for pooling; a checkpoint in floats is, "
                "and --quantization int8 makes 8 bits of it at load"
            )
        if config.load_format != "dummy":
            read_weights(folder)
        return
    values = native_values(read_json(folder / "config.json"), spec.base)
    shape = read_architecture(values, folder / "config.json", config.quantization)
    if config.load_format != "dummy":
        find_hidden_weights(folder, shape)
    count_blocks(config, shape.kv, model.max_model_len + 1, NUMBERS[dtype_on_cpu(config, shape)], 0)


def check_adapted(config: Config, model: ModelInfo) -> None:
    """ConfigError if an option cannot be had with layers of transformers, or the files are not what they should be.

    Whether the model can be, the worker finds out: it knows transformers.
    """
    name, folder = model.architecture, Path(model.folder)
    if check_gpu(config):
        raise adapted_on_gpu(model)
    if config.tensor_parallel_size > 1 and config.enable_lora:
        raise ConfigError(
            f"--enable-lora: {name} is computed by layers of transformers, which adapters fit in one worker only; "
            "leave --tensor-parallel-size out"
        )
    if config.pipeline_parallel_size > 1:
        raise ConfigError(
            f"--pipeline-parallel-size: {name} is computed by layers of transformers, which one worker has; leave the "
            "option out"
        )
    if config.enable_expert_parallel:
        raise ConfigError(
            f"--enable-expert-parallel: {name} is computed by layers of transformers, which one worker has with all "
            "experts; leave the option out"
        )
    if config.deterministic:
        raise ConfigError(
            f"--deterministic: {name} is computed by layers of transformers, whose bits follow the batch; leave the "
            "option out"
        )
    if isinstance(read_speculative(config), HeadOptions):
        raise ConfigError(
            f"{OPTION}: method: ngram or draft_model with layers of transformers, which compute {name}; heads go with "
            "this server's own"
        )
    path = folder / "config.json"
    weights_method(Values(path, read_json(path)), config.quantization)
    if config.load_format != "dummy":
        read_weights(folder)
    check_device(config, on_gpu=False)


def _check_prompt_embeds(config: Config, model: ModelInfo) -> None:
    """ConfigError if no prompt of this model can be embeddings."""
    option, name = "--enable-prompt-embeds", model.architecture
    if not model.hidden:
        raise ConfigError(f"{option}: {name} is not computed by this server's own layers, which take embeddings")
    if check_gpu(config):
        raise ConfigError(f"{option}: embeddings are taken on a CPU only (--device cpu)")
    if config.remote_engines or config.steward or config.nnodes > 1:
        raise ConfigError(f"{option}: prompts that are embeddings are computed on the server's machine only")


def check_vision(config: Config, model: ModelInfo, spec: VisionSpec) -> None:
    """ConfigError if an option cannot be had with a model that sees pictures."""
    name, does = model.architecture, "hears sounds" if spec.hears else "sees pictures"
    if check_gpu(config):
        raise vision_on_gpu(model)
    if spec.hears and not can_decode():
        raise ConfigError(f"model: {name} hears sounds: {MISSING}")
    if config.deterministic:
        raise ConfigError(
            f"--deterministic: {name} {does}, and transformers promises no bits of theirs; leave the option out"
        )
    if config.pipeline_parallel_size > 1:
        raise ConfigError(
            f"--pipeline-parallel-size: not with a model that {does} ({name}); --tensor-parallel-size divides it"
        )
    if not isinstance(read_speculative(config), LookupOptions | None):
        raise ConfigError(f"{OPTION}: method: ngram or suffix with a model that {does} ({name}); others know texts")
    if spec.span > config.max_num_batched_tokens:
        raise ConfigError(
            f"--max-num-batched-tokens {config.max_num_batched_tokens}: {name} computes the {spec.span} tokens of a "
            f"picture in one step; set it to {spec.span} or more"
        )


def vision_on_gpu(model: ModelInfo) -> ConfigError:
    does = "hears sounds" if model.vision is not None and model.vision.hears else "sees pictures"
    return ConfigError(f"model: {model.architecture} {does}, which is computed on a CPU only (--device cpu)")


def adapted_on_gpu(model: ModelInfo) -> ConfigError:
    return ConfigError(f"model: {model.architecture}: layers of transformers compute on a CPU only (--device cpu)")


def _read_shape(config: Config, model: ModelInfo) -> Architecture | None:
    path = Path(model.folder) / "config.json"
    return find_architecture(read_json(path), config.model_impl, config.quantization, path)
