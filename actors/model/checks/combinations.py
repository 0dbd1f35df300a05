"""Which options go with a model that pools, that sees or hears, or that transformers computes."""

from __future__ import annotations

from pathlib import Path

from ...options.config import Config, ConfigError
from ...options.objects.speculative import OPTION, HeadOptions, LookupOptions, NgramOptions, is_wanted, read_speculative
from ...sound.installed import MISSING, can_decode
from ..config_json import read_architecture, weights_method
from ..info import ModelInfo, read_json
from ..memory.dtypes import NUMBERS, dtype_on_cpu
from ..memory.machine import count_blocks
from ..pooling.choice import native_values
from ..pooling.spec import PoolingSpec
from ..quantization import NONE
from ..sharding import shard_shape
from ..values import Values
from ..vision.spec import VisionSpec
from ..weights.weight_files import find_hidden_weights, read_weights
from .device import check_beside_gpu, check_device, check_gpu


def check_pooling(config: Config, model: ModelInfo, spec: PoolingSpec) -> None:
    """ConfigError if an option cannot be had with a model that pools, or its weights are not what they should be."""
    on_gpu = check_beside_gpu(config, model)
    if config.tensor_parallel_size > 1 and not spec.base:
        raise ConfigError(
            f"--tensor-parallel-size: {model.architecture} is computed by layers of transformers, which one worker has "
            "where they pool; leave the option out (--data-parallel-size has several)"
        )
    for option, given in (
        ("--pipeline-parallel-size", config.pipeline_parallel_size > 1),
        ("--deterministic", config.deterministic),
        (OPTION, is_wanted(config)),
        ("--enable-lora", config.enable_lora),
    ):
        if given:
            raise ConfigError(f"{option}: not with a model that pools ({model.architecture}); leave the option out")
    if not on_gpu:  # what goes with a GPU is looked at where torch finds it
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
    if not on_gpu:
        part = shard_shape(shape, config.tensor_parallel_size, config.enable_expert_parallel)
        count_blocks(config, part.kv, model.max_model_len + 1, NUMBERS[dtype_on_cpu(config, shape)])


def check_adapted(config: Config, model: ModelInfo, on_gpu: bool | None = None) -> None:
    """ConfigError if an option cannot be had with layers of transformers, or the files are not what they should be.

    Whether the model can be, the worker finds out: it knows transformers, and whether it is `on_gpu`.
    """
    name, folder = model.architecture, Path(model.folder)
    on_gpu = check_gpu(config) if on_gpu is None else on_gpu
    if on_gpu:
        _check_adapted_on_gpu(config, model)
    if config.tensor_parallel_size > 1 and config.enable_lora:
        raise ConfigError(
            f"--enable-lora: {name} is computed by layers of transformers, which adapters fit in one worker only; "
            "leave --tensor-parallel-size out"
        )
    for option, given, why in (
        ("--pipeline-parallel-size", config.pipeline_parallel_size > 1, "which one worker has"),
        ("--enable-expert-parallel", config.enable_expert_parallel, "which one worker has with all experts"),
        ("--deterministic", config.deterministic, "whose bits follow the batch"),
    ):
        if given:
            raise ConfigError(f"{option}: {name} is computed by layers of transformers, {why}; leave the option out")
    if isinstance(read_speculative(config), HeadOptions):
        raise ConfigError(
            f"{OPTION}: method: ngram or draft_model with layers of transformers, which compute {name}; heads go with "
            "this server's own"
        )
    path = folder / "config.json"
    weights_method(Values(path, read_json(path)), config.quantization)
    if config.load_format != "dummy":
        read_weights(folder)
    if not on_gpu:  # what goes with a GPU is looked at where torch finds it
        check_device(config, on_gpu=False)


def _check_adapted_on_gpu(config: Config, model: ModelInfo) -> None:
    """ConfigError if layers of transformers cannot be had there with these options.

    They compute in floats, as they are: what replaces their products is the CPU's.
    """
    name = model.architecture
    given = read_speculative(config)
    for option, wanted in (
        ("--tensor-parallel-size", config.tensor_parallel_size > 1),
        ("--enable-lora", config.enable_lora),
        (OPTION, not isinstance(given, NgramOptions | None)),
    ):
        if wanted:
            other = ", or method: ngram" if option == OPTION else ""
            raise ConfigError(
                f"{option}: {name} is computed by layers of transformers, which on a GPU have none of it; leave the "
                f"option out{other}, or --device cpu"
            )
    _check_floats(config, model)


def _check_floats(config: Config, model: ModelInfo) -> None:
    """ConfigError if weights are to be anything else."""
    path = Path(model.folder) / "config.json"
    method, stored = weights_method(Values(path, read_json(path)), config.quantization)
    if config.quantization == NONE.name or (method is NONE and stored is None):
        return
    about = f"{model.architecture} is computed by layers of transformers, which have floats on a GPU"
    if config.quantization == method.name and method.stored_as is None:
        raise ConfigError(f"--quantization {method.name}: {about}; leave the option out, or --device cpu")
    kept = method.name if stored is None else stored.name
    raise ConfigError(
        f"model: its weights are {kept}: {about}; --quantization none makes floats of them at load, and --device cpu "
        "has them in few bits"
    )


def check_prompt_embeds(config: Config, model: ModelInfo) -> None:
    """ConfigError if no prompt of this model can be embeddings."""
    option, name = "--enable-prompt-embeds", model.architecture
    if not model.hidden:
        raise ConfigError(f"{option}: {name} is not computed by this server's own layers, which take embeddings")
    if check_gpu(config):
        _check_prompt_embeds_on_gpu(config, model)
    if config.remote_engines or config.steward or config.nnodes > 1:
        raise ConfigError(f"{option}: prompts that are embeddings are computed on the server's machine only")


def check_hidden_states(config: Config, model: ModelInfo) -> None:
    """ConfigError if this model tells no hidden states beside its texts."""
    option, name = "--enable-return-hidden-states", model.architecture
    if model.pooling is not None:
        raise ConfigError(f"{option}: {name} pools, and tells them at /pooling (token_embed); leave the option out")
    if not model.hidden:
        raise ConfigError(f"{option}: {name} is not computed by this server's own layers, which tell them")
    if config.remote_engines or config.steward or config.nnodes > 1:
        raise ConfigError(f"{option}: they are told of what is computed on the server's machine only")


def _check_prompt_embeds_on_gpu(config: Config, model: ModelInfo) -> None:
    """ConfigError if something beside it is a CPU's alone."""
    option, name = "--enable-prompt-embeds", model.architecture
    if model.vision is not None:
        raise ConfigError(f"{option}: on a CPU (--device cpu) alone with a model that sees or hears ({name})")
    if not isinstance(read_speculative(config), NgramOptions | None):
        raise ConfigError(f"{option}: beside it {OPTION} has method: ngram on a GPU, others on a CPU (--device cpu)")


def check_vision(config: Config, model: ModelInfo, spec: VisionSpec) -> None:
    """ConfigError if an option cannot be had with a model that sees pictures."""
    name, does = model.architecture, "hears sounds" if spec.hears else "sees pictures"
    if spec.hears and not can_decode():
        raise ConfigError(f"model: {name} hears sounds: {MISSING}")
    if config.deterministic and (spec.hears or spec.whole_pictures):
        said = does if spec.hears else "lets tokens of a picture see one another"
        raise ConfigError(f"--deterministic: {name} {said}, whose bits are not fixed as yet; leave the option out")
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
