"""What a worker would find if it were started now: the device, the weights, room for KV memory. It computes nothing.

Sizes and refusals are the worker's own.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import msgspec
import torch

from actorserve.shm.free_memory import available_bytes

from ..model.architecture import Architecture
from ..model.checks.combinations import check_pooling, check_vision
from ..model.config_json import find_architecture, read_architecture
from ..model.gguf.folder import is_gguf
from ..model.gguf.gpu_bytes import gpu_bytes
from ..model.info import ModelInfo, read_json
from ..model.memory.dtypes import NUMBERS, architecture_on_gpu, float_on_cpu, kv_type_of, kv_type_on_cpu, pooled_on_gpu
from ..model.memory.kv import KVSpec, KVType
from ..model.memory.kv_memory import KVMemory, nothing_offloaded
from ..model.memory.machine import (
    blocks_in,
    kv_memory_room,
    unused_memory,
    usable_cores,
    weight_bytes,
    without_effect,
)
from ..model.memory.windows import windows_words
from ..model.pipeline.stages import left_out, plan_stages, worker_shapes
from ..model.pooling.choice import native_values
from ..model.pooling.spec import PoolingSpec
from ..model.quantization import METHODS, NONE
from ..model.rope import long_texts
from ..model.sharding import shard_shape
from ..model.weights.weight_files import read_weights
from ..options.config import Config
from ..protocol.topology import System
from .cpu.layers.native import choose
from .models.weights import choose_dtype, open_checkpoint
from .speculative.actor import load_drafter
from .start.beside import uses_gpu_beside
from .start.model import check_options, uses_gpu
from .torch_import import import_rest

Facts = Iterator[dict[str, Any]]
log = logging.getLogger("check")


def inspect(config: Config, model: ModelInfo) -> Facts:
    """Facts, as far as they can be had; ConfigError says why there are no more."""
    if config.worker == "scripted":
        blocks = System(config, model).max_blocks
        yield {"device": "nothing: it is scripted", "dtype": "no type", "weights_bytes": 0, "kv_bytes_per_token": 0}
        yield {"blocks": blocks, "kv_bytes": 0, "estimated": False}
        return
    values = read_json(Path(model.folder) / "config.json")
    if model.pooling is not None:
        yield from _pooling(config, model, model.pooling, values)
        return
    if model.encoder is not None:
        yield from _encoder_decoder(config, model)
        return
    shape = find_architecture(values, config.model_impl, config.quantization)
    if shape is None:
        yield from _adapted(config, model)
        return
    own = shard_shape(shape, config.tensor_parallel_size, config.enable_expert_parallel)
    parameters = sum(prod(sizes) for sizes in shape.tensors().values())
    yield {"parameters": parameters, "layers": shape.layers, "heads": shape.heads, "kv_heads": shape.kv_heads}
    if config.load_format != "dummy":
        open_checkpoint(Path(model.folder), shape)
    on_gpu = uses_gpu(config)
    check_options(config, on_gpu)
    for words in filter(None, (*without_effect(config, on_gpu), long_texts(shape.rope, model.max_model_len))):
        log.warning("%s", words)
    if on_gpu:
        yield from _on_gpu(config, model, own)
        return
    yield from _on_cpu(config, model, own, worker_shapes(config, shape))


def _on_cpu(config: Config, model: ModelInfo, shape: Architecture, stages: Sequence[Architecture]) -> Facts:
    """`stages` of a pipeline, or the model as one; told are the weights of the one that has most."""
    dtype = choose_dtype(config, shape)
    weights = max(weight_bytes(stage, dtype, left_out(stages, index)) for index, stage in enumerate(stages))
    if (tower := _tower_size(config, model)) is not None:
        yield {"way": f"a tower of {tower:,} parameters, by transformers"}
        weights += tower * dtype.itemsize
    yield {"dtype": _types(shape, dtype), "weights_bytes": weights}
    yield from _memory_on_cpu(config, model, [stage.kv for stage in stages], dtype, kv_type_of(config, shape))


def _tower_size(config: Config, model: ModelInfo) -> int | None:
    """How many parameters it has; None: the model sees nothing."""
    if model.vision is None:
        return None
    check_vision(config, model, model.vision)
    import_rest()
    from .vision.tower import tower_facts

    return tower_facts(model).parameters


def _pooling(config: Config, model: ModelInfo, spec: PoolingSpec, values: dict[str, Any]) -> Facts:
    """Of a model that makes no texts."""
    check_pooling(config, model, spec)
    on_gpu = _beside_on_gpu(config, model)
    way = {"way": f"pools: {', '.join(spec.tasks)} of {', '.join(spec.methods)}"}
    if spec.base:
        shape = read_architecture(native_values(values, spec.base), quantization=config.quantization)
        yield {"parameters": sum(prod(sizes) for sizes in shape.tensors().values()), "layers": shape.layers, **way}
        floats = msgspec.structs.replace(config, quantization=NONE.name)
        there = partial(_on_gpu, floats, model, shape)
        yield from _where_there_is_room(config, on_gpu, there, partial(_on_cpu, config, model, shape, [shape]))
        return
    yield {"way": f"layers of transformers, whole prompts, {way['way']}"}
    there, here = (partial(_whole, config, model, values, at) for at in (True, False))
    yield from _where_there_is_room(config, on_gpu, there, here)


def _whole(config: Config, model: ModelInfo, values: dict[str, Any], on_gpu: bool) -> Facts:
    """Of an encoder, which keeps nothing of prompts."""
    tensors = {} if config.load_format == "dummy" else read_weights(Path(model.folder))
    method = METHODS.get(config.quantization, NONE)
    stored = str(values.get("dtype") or values.get("torch_dtype"))
    kind = str(values.get("model_type"))
    dtype = pooled_on_gpu(config, stored, kind) if on_gpu else float_on_cpu(config, stored)
    numbers = sum(prod(tensor.shape) for tensor in tensors.values())
    each = NUMBERS[dtype].itemsize if method.bytes_per_weight is None else method.bytes_per_weight
    size, device = int(numbers * each), "cpu"
    if on_gpu:
        from .gpu.memory import check_weights

        check_weights(size, torch.device("cuda", 0))
        device = torch.cuda.get_device_name(0)
    yield {"dtype": dtype, "device": device, "weights_bytes": size, "kv_bytes_per_token": 0}
    yield {"blocks": System(config, model).max_blocks, "kv_bytes": 0, "estimated": False}


def _beside_on_gpu(config: Config, model: ModelInfo) -> bool:
    """Whether a GPU computes what goes on with no texts of its own, or reads by an encoder."""
    on_gpu, reason = uses_gpu_beside(config, model)
    if reason:
        log.warning("computing on the CPU: %s", reason)
    return on_gpu


def _where_there_is_room(config: Config, on_gpu: bool, there: Callable[[], Facts], here: Callable[[], Facts]) -> Facts:
    """Of a GPU, if one is to be; but of the CPU where it is full, as a start does it without --device cuda."""
    if on_gpu:
        from .gpu.memory import NoRoom

        try:
            yield from list(there())
            return
        except NoRoom as error:
            if config.device == "cuda":
                raise
            log.warning("computing on the CPU: %s", error)
    yield from here()


def _encoder_decoder(config: Config, model: ModelInfo) -> Facts:
    """Of layers of transformers that read a prompt, and others that write."""
    on_gpu = _beside_on_gpu(config, model)
    there, here = (partial(_reading, config, model, at) for at in (True, False))
    yield from _where_there_is_room(config, on_gpu, there, here)


def _reading(config: Config, model: ModelInfo, on_gpu: bool) -> Facts:
    from .adapter.facts import weight_bytes as bytes_of
    from .encoder_decoder.load import describe_encoder_decoder, types_of

    device = torch.device("cuda", 0) if on_gpu else torch.device("cpu")
    found, kv, shell = describe_encoder_decoder(config, model, device)
    dtype, method = types_of(config, model, found, device)
    name = str(dtype).removeprefix("torch.")
    parameters = sum(parameter.numel() for parameter in shell.parameters())
    weights = parameters * dtype.itemsize if on_gpu else bytes_of(shell, dtype, method)
    yield {
        "parameters": parameters,
        "layers": sum(layer is not None and layer.source is None for layer in kv.layers),
        "way": f"layers of transformers, an encoder and a decoder, {found.verdict.way.value}",
        "dtype": name if method is NONE else f"{method.name} and {name}",
        "weights_bytes": weights,
    }
    if on_gpu:
        from .encoder_decoder.load import shape_on_gpu

        yield from _memory_on_gpu(config, model, shape_on_gpu(model, kv, found.config), dtype, weights)
        return
    kind = kv_type_on_cpu(config, name, method.computes_in is not None)
    yield from _memory_on_cpu(config, model, [kv], dtype, kind)


def _adapted(config: Config, model: ModelInfo) -> Facts:
    """Of layers of transformers."""
    check_options(config, on_gpu := uses_gpu(config))
    if on_gpu:
        yield from _adapted_on_gpu(config, model)
        return
    from .adapter.facts import facts

    known, kv, dtype, quantised, may_free = facts(config, model)
    yield known
    if (tower := _tower_size(config, model)) is not None:
        yield {"way": f"{known['way']}, and a tower of {tower:,} parameters"}
        yield {"weights_bytes": known["weights_bytes"] + tower * dtype.itemsize}
    kind = kv_type_on_cpu(config, str(dtype).removeprefix("torch."), quantised)
    yield from _memory_on_cpu(config, model, [kv], dtype, kind, may_free)


def _adapted_on_gpu(config: Config, model: ModelInfo) -> Facts:
    """The same there, where a small model is tried."""
    import_rest()
    from .adapter.facts import layer_count
    from .adapter.model import describe
    from .gpu.adapted.load import describe_on_gpu, graph_words

    known = describe_on_gpu(config, model, torch.device("cuda", 0))
    dtype, stored, verdict = known.types.dtype, known.types.stored, known.found.verdict
    weights = known.parameters * dtype.itemsize
    way = f"layers of transformers, {describe(known.traits, verdict.tier)}, {graph_words(verdict)}"
    yield {
        "parameters": known.parameters,
        "layers": layer_count(known.found.config, known.traits),
        "way": way,
        "dtype": str(dtype).removeprefix("torch.") + ("" if stored is None else f" (of {stored.name})"),
        "weights_bytes": weights,
    }
    if (tower := _tower_size(config, model)) is not None:
        yield {"way": f"{way}, and a tower of {tower:,} parameters"}
        weights += tower * dtype.itemsize
        yield {"weights_bytes": weights}
    yield from _memory_on_gpu(config, model, known.shape, dtype, weights)


def _memory_on_cpu(
    config: Config,
    model: ModelInfo,
    parts: Sequence[KVSpec],
    dtype: torch.dtype,
    kind: KVType,
    may_free: bool = True,
) -> Facts:
    """Of what a model keeps of tokens and sequences; `may_free`: windows let go of what they do not see."""
    drafter = load_drafter(config, model, None)
    beside = drafter.block_bytes if drafter else 0
    plans = plan_stages(parts, config, model.max_model_len, dtype.itemsize, beside, may_free, kind)
    plan = plans.whole
    states = any(kv.states for kv in parts)
    if config.offloads and (states or beside or plan.windows):
        log.warning("%s", nothing_offloaded(states, plan))
    option, room = kv_memory_room(config)
    longest = -(-model.max_model_len // config.block_size)
    yield {
        "device": "cpu",
        "kernels": choose(config.cpu_kernels)[1],
        "threads": config.threads or max(1, (usable_cores() - 1) // (config.local_workers * config.local_engines)),
        "kv_cache_dtype": kind.name,
        "kv_bytes_per_token": plan.block_bytes * plan.sequence_blocks // (longest * config.block_size),
        "kv_windows": windows_words(parts, [one.windows for one in plans.each]),
        "available_bytes": available_bytes(),
    }
    blocks = blocks_in(config, plan, model.max_model_len, option, room)
    _warn_unused_memory(config, model, blocks, plan)
    tokens = plan.tokens(config, model.max_model_len, blocks)
    yield {"sequence_blocks": plan.sequence_blocks, "kv_tokens": tokens}
    yield {"blocks": blocks, "kv_bytes": blocks * plan.block_bytes, "estimated": False}


def _on_gpu(config: Config, model: ModelInfo, shape: Architecture) -> Facts:
    """As the worker counts them, less what steps need: that is measured at the start."""
    from .gpu.layers.sources import check_rounded_inputs
    from .gpu.load import check_index_room, check_shape, choose_dtype

    check_shape(config, shape)
    dtype = choose_dtype(config, shape)
    check_rounded_inputs(config, dtype, torch.device("cuda", 0))
    check_index_room(shape, dtype, torch.device("cuda", 0))
    of_gguf = is_gguf(model.folder)
    shape, stays = architecture_on_gpu(config, shape, of_gguf)
    own_bytes = gpu_bytes(Path(model.folder)) if of_gguf and stays else {}
    weights = weight_bytes(shape, dtype, stays=stays, own_bytes=own_bytes)
    types = _types(shape, dtype) + (" (of gguf)" if of_gguf and stays else "")
    if (tower := _tower_size(config, model)) is not None:
        yield {"way": f"a tower of {tower:,} parameters, by transformers"}
        weights += tower * dtype.itemsize
    yield {"dtype": types, "weights_bytes": weights}
    yield from _memory_on_gpu(config, model, shape, dtype, weights)


def _memory_on_gpu(config: Config, model: ModelInfo, shape: Architecture, dtype: torch.dtype, weights: int) -> Facts:
    """`weights`: their bytes."""
    from .gpu.memory import RESERVE, blocks_in, check_given_bytes, device_memory, kv_kind, plan_memory, room_for_blocks
    from .gpu.pictures import pictures_bytes

    kind, length = kv_kind(config, dtype, torch.device("cuda", 0)), model.max_model_len
    plan = plan_memory(config, shape, length, kind)
    longest = -(-length // config.block_size)
    free, total = device_memory(0)
    yield {
        "device": torch.cuda.get_device_name(0),
        "kv_cache_dtype": "fp8" if config.kv_cache_dtype == "fp8" else str(dtype).removeprefix("torch."),
        "kv_bytes_per_token": plan.block_bytes * plan.sequence_blocks // (longest * config.block_size),
        "kv_windows": windows_words([shape.kv], [plan.windows]),
        "available_bytes": free,
    }
    weights += 0 if model.vision is None else pictures_bytes(config)
    room = room_for_blocks(config, total, total - free + weights, 0)
    blocks = blocks_in(config, plan, length, room)
    # What others have of the device now may be that of a server which this one is to replace.
    if words := check_given_bytes(config, plan, blocks, total - weights, free - weights - RESERVE):
        log.warning("%s", words)
    _warn_unused_memory(config, model, blocks, plan)
    yield {"sequence_blocks": plan.sequence_blocks, "kv_tokens": plan.tokens(config, length, blocks)}
    yield {"blocks": blocks, "kv_bytes": blocks * plan.block_bytes, "estimated": True}


def _warn_unused_memory(config: Config, model: ModelInfo, blocks: int, plan: KVMemory) -> None:
    if words := unused_memory(config, model.max_model_len, blocks, plan):
        log.warning("%s", words)


def _types(shape: Architecture, dtype: torch.dtype) -> str:
    """In which the model is computed."""
    name, method = str(dtype).removeprefix("torch."), shape.quantization
    kept = name if method.name == NONE.name else f"{method.name} and {name}"
    return kept if shape.stored is None else f"{kept} (of {shape.stored.name})"
