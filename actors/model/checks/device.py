"""What a CPU or a GPU can do of the options, and whether there is a GPU."""

from __future__ import annotations

from ...options.config import Config, ConfigError
from ...options.objects.speculative import (
    OPTION,
    DraftModelOptions,
    HeadOptions,
    SuffixOptions,
    read_speculative,
)
from ..info import ModelInfo
from ..memory.kv import GPU_KV_TYPES
from ..memory.machine import may_have_gpu
from ..quantization import METHODS, NONE


def check_device(config: Config, on_gpu: bool) -> None:
    """ConfigError if an option is for the other device."""
    method = METHODS.get(config.quantization, NONE)
    if method.rounds_inputs and not on_gpu:
        raise ConfigError(f"--quantization {method.name}: on a GPU only (--device cuda); fp8 has the same weights")
    if method.rounds_inputs and config.deterministic:
        raise ConfigError(f"--deterministic: not with --quantization {method.name}, which rounds by the size of a step")
    if on_gpu and config.kv_cache_dtype not in GPU_KV_TYPES:
        raise ConfigError(f"--kv-cache-dtype {config.kv_cache_dtype}: on a CPU only; on a GPU auto or fp8")
    if on_gpu and config.pipeline_parallel_size > 1:
        raise ConfigError(
            "--pipeline-parallel-size: stages are for a CPU as yet (--device cpu); on GPUs --tensor-parallel-size "
            "divides a model"
        )
    if on_gpu:
        _check_only_on_cpu(config)
        check_drafts_on_gpu(config)
    given = read_speculative(config) if on_gpu else None
    if isinstance(given, DraftModelOptions | HeadOptions) and config.tensor_parallel_size > 1:
        raise ConfigError(f"{OPTION}: method: ngram only with several GPUs (--tensor-parallel-size above 1)")


def _check_only_on_cpu(config: Config) -> None:
    """ConfigError if an option is given of which the worker of a GPU would do nothing."""
    for option, given in (
        ("--enable-eplb", config.enable_eplb),
        ("--enable-return-hidden-states", config.enable_return_hidden_states),
        ("--logits-processors", bool(config.logits_processors)),
        ("--logits-processor-pattern", config.logits_processor_pattern is not None),
        ("--worker-cls", config.worker_cls is not None),
    ):
        if given:
            raise ConfigError(f"{option}: on a CPU as yet (--device cpu)")


def check_drafts_on_gpu(config: Config) -> None:
    """ConfigError if drafts are of a kind that a CPU's worker alone makes."""
    given = read_speculative(config)
    if isinstance(given, SuffixOptions):
        advice = "is for a CPU only (--device cpu); ngram is nearest to it"
        raise ConfigError(f"{OPTION}: method: suffix {advice}")


def check_gpu(config: Config) -> bool:
    """May there be a GPU that is to be used? ConfigError if it must be, and there is no driver of one."""
    there = may_have_gpu()
    if config.device == "cuda" and not there:
        raise ConfigError("--device cuda: there is no GPU here that may be used (no driver, or CUDA_VISIBLE_DEVICES)")
    return config.device != "cpu" and there


def draws_on_gpu(config: Config, model: ModelInfo) -> bool:
    """May tokens be drawn there? Those of an encoder with a decoder are drawn by the CPU, wherever that computes."""
    return model.encoder is None and check_gpu(config)


def only_on_cpu(config: Config, model: ModelInfo) -> str:
    """What keeps a model that pools, or that has an encoder and a decoder, from any GPU; nothing where one may do."""
    name = model.architecture
    if model.pooling is None and model.encoder is None:
        return ""
    if config.tensor_parallel_size > 1:
        return f"--tensor-parallel-size: {name} pools, which several workers do together on a CPU only"
    method = METHODS.get(config.quantization, NONE)
    if method.computes_in is not None:
        does = "pools" if model.encoder is None else "has an encoder and a decoder"
        return f"--quantization {method.name}: {name} {does}, of which weights are floats on a GPU"
    return ""


def check_beside_gpu(config: Config, model: ModelInfo) -> bool:
    """May a GPU compute such a model? ConfigError if one must, and cannot."""
    if (reason := only_on_cpu(config, model)) and config.device == "cuda":
        raise ConfigError(f"--device cuda: {reason} (--device cpu)")
    return not reason and check_gpu(config)
