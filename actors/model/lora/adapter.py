"""What the files of a LoRA adapter say, in PEFT's format: adapter_config.json and adapter_model.safetensors or .bin.

For each linear layer that it changes there are A [rank, inputs] and B [outputs, rank], and with DoRA a magnitude m:
    y = W x + s·B(A x)                          s = alpha / rank, or alpha / √rank with use_rslora
    y = m / |W + s·B·A| · (W x + s·B(A x))      with use_dora; |·| is the length of each row; biases are added behind
With target_parameters PEFT adapts the weights of a layer's experts that one tensor holds, two such by names within one
another (`experts` and `experts.base_layer`): A [experts · rank, inputs] and B [outputs, rank · experts], of which the
ranks of an expert lie side by side in A and `experts` apart in B.
rank_pattern and alpha_pattern have other numbers for some layers, or such weights; fan_in_fan_out says how W is stored,
which changes nothing here. What an adapter may have beside that is refused by name. Knows files and no torch: no weight
is read.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from ...options.config import ConfigError
from ..layers import HEAD
from ..weights.places import some
from ..weights.weight_files import StoredTensor, read_files

CONFIG = "adapter_config.json"
FILES = ("adapter_model.safetensors", "adapter_model.bin")
PREFIX = "base_model.model."
LONGEST_CONFIG = 1 << 20  # bytes
STAMP_BYTES = 7  # that fit a word of shared memory
TYPES = ("F32", "F16", "BF16")
EXPERTS = re.compile(r"(?:^|(?<=\.))experts(?:\.base_layer)*$")  # what holds the weights of all experts of a layer
STACKED = ("gate_up_proj", "down_proj")  # its weights, in the order in which PEFT wraps them, the last one outside
ALL_LINEAR = "all-linear"  # PEFT's word for target_modules
STARTS = (True, False, None, "gaussian", "eva", "orthogonal")  # of init_lora_weights, that leave the base as it is
HARMLESS = frozenset(  # fields that say how it was trained, or are read here
    "alpha_pattern auto_mapping base_model_name_or_path corda_config eva_config exclude_modules fan_in_fan_out "
    "inference_mode init_lora_weights layers_pattern layers_to_transform loftq_config lora_alpha "
    "lora_dropout lora_ga_config megatron_config megatron_core peft_type peft_version qalora_group_size r rank_pattern "
    "revision runtime_config target_modules target_parameters task_type use_dora use_rslora bias ensure_weight_tying "
    "velora_config".split()
)
REASONS = {  # why others are refused, where there is more to say
    "modules_to_save": "whole layers beside the low-rank ones would be another model",
    "trainable_token_indices": "embeddings are those of the model",
    "alora_invocation_tokens": "activated LoRA is not built",
}
PARTS = {
    "lora_A.weight": "a",
    "lora_B.weight": "b",
    "lora_magnitude_vector": "magnitude",
    "lora_magnitude_vector.weight": "magnitude",
    "base_layer.weight": "base",
}


class AdapterError(ValueError):
    """An adapter cannot be used; the message says what is wrong with it."""


class AdapterConfig(msgspec.Struct, frozen=True):
    """The fields of adapter_config.json that are read."""

    r: int = 8
    lora_alpha: float = 8
    peft_type: str = "LORA"
    use_rslora: bool = False
    use_dora: bool = False
    bias: str = "none"
    init_lora_weights: bool | str | None = True
    target_modules: list[str] | str | None = None
    target_parameters: list[str] | None = None
    rank_pattern: dict[str, int] | None = None
    alpha_pattern: dict[str, float] | None = None


class AdaptedLinear(NamedTuple):
    """One linear layer that an adapter changes; its tensors by their names in the file."""

    module: str  # its name in the model
    a: str
    b: str
    magnitude: str | None
    rank: int
    scale: float
    inputs: int
    outputs: int
    base: str | None = None  # the layer's own weight, which PEFT stores beside its changes where it makes logits
    experts: int = 0  # how many A and B are of, side by side; 0: of one layer
    expert: int = 0  # which of them this is
    rows: slice | None = None  # of B, where the outputs are a part of them


class Adapter(NamedTuple):
    """An adapter's files, looked at."""

    file: Path
    linears: dict[str, AdaptedLinear]  # by module
    absent: tuple[str, ...] = ()  # names of target_modules, of which the file has no tensors

    @property
    def rank(self) -> int:
        """The largest."""
        return max(linear.rank for linear in self.linears.values())


def stamp_of(path: str) -> int:
    """What tells files that were written anew from those that were there: their sizes and times, as one number that
    is not 0; 0 where there are none.
    """
    found: list[tuple[str, int, int]] = []
    for name in (CONFIG, *FILES):
        with contextlib.suppress(OSError):
            about = (Path(path).expanduser() / name).stat()
            found.append((name, about.st_size, about.st_mtime_ns))
    if not found:
        return 0
    return int.from_bytes(hashlib.blake2b(repr(found).encode(), digest_size=STAMP_BYTES).digest()) or 1


def read_adapter(path: str, max_rank: int) -> Adapter:
    """The adapter in a folder. AdapterError says what is wrong with it."""
    folder = Path(path).expanduser()
    if not folder.is_dir():
        raise AdapterError(f"there is no folder {path}")
    config = _read_config(folder / CONFIG)
    file = next((folder / name for name in FILES if (folder / name).is_file()), None)
    if file is None:
        raise AdapterError(f"{folder} has neither {FILES[0]} nor {FILES[1]}")
    try:
        tensors = read_files([file])
    except ConfigError as error:
        raise AdapterError(str(error).removeprefix("model: ")) from None
    linears = {module: _linear(config, module, parts, tensors) for module, parts in _modules(tensors).items()}
    _check_parameters(config, linears)
    if not linears:
        raise AdapterError(f"{file} has no tensors of LoRA")
    adapter = Adapter(file, linears, _absent(config.target_modules, linears))
    if adapter.rank > max_rank:
        raise AdapterError(f"its rank of {adapter.rank} is more than --max-lora-rank {max_rank}")
    return adapter


def _read_config(path: Path) -> AdapterConfig:
    try:
        if path.stat().st_size > LONGEST_CONFIG:
            raise AdapterError(f"{path} has more than {LONGEST_CONFIG:,} bytes")
        values = json.loads(path.read_bytes())
        config = msgspec.convert(values, AdapterConfig)
    except OSError as error:
        raise AdapterError(f"{path} cannot be read: {error.strerror or error}") from None
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        if isinstance(error, AdapterError):
            raise
        raise AdapterError(f"{path}: {error}") from None
    _check_fields(path, values, config)
    return config


def _check_fields(path: Path, values: dict[str, Any], config: AdapterConfig) -> None:
    """AdapterError for what would change the model in a way that is not built."""
    if config.peft_type != "LORA":
        raise AdapterError(f"{path}: peft_type {config.peft_type!r} is not supported; only LORA is")
    if config.bias != "none":
        raise AdapterError(f"{path}: bias {config.bias!r} is not supported; only 'none' is")
    if config.init_lora_weights not in STARTS:
        text = f"{path}: init_lora_weights {config.init_lora_weights!r} changes the weights of the model itself"
        raise AdapterError(f"{text}; convert the adapter to a plain one")
    for name, value in values.items():
        if name not in HARMLESS and value not in (None, False, [], {}, ""):
            reason = f": {REASONS[name]}" if name in REASONS else ""
            raise AdapterError(f"{path}: {name} is not supported{reason}")
    ranks = [config.r, *(config.rank_pattern or {}).values()]
    alphas = [config.lora_alpha, *(config.alpha_pattern or {}).values()]
    if min(ranks) < 1 or not all(math.isfinite(alpha) for alpha in alphas):
        raise AdapterError(f"{path}: r and rank_pattern must be positive, lora_alpha and alpha_pattern finite")


def _modules(tensors: Mapping[str, StoredTensor]) -> dict[str, dict[str, str]]:
    """The tensors of each layer that is changed. AdapterError for one of another kind, by name."""
    modules: dict[str, dict[str, str]] = {}
    for name in tensors:
        own = name.removeprefix(PREFIX)
        part = next((part for part in PARTS if own.endswith(f".{part}")), None)
        if part == "base_layer.weight" and not own.startswith(f"{HEAD}."):
            part = None
        if part is None:
            raise AdapterError(f"{name} is not supported: only lora_A, lora_B and lora_magnitude_vector are")
        modules.setdefault(own.removesuffix(f".{part}"), {})[PARTS[part]] = name
    return modules


def _linear(
    config: AdapterConfig, module: str, parts: dict[str, str], tensors: Mapping[str, StoredTensor]
) -> AdaptedLinear:
    for part in ("a", "b"):
        if part not in parts:
            raise AdapterError(f"{module} has no lora_{part.upper()}.weight")
    a, b, m = (None if part not in parts else tensors[parts[part]] for part in ("a", "b", "magnitude"))
    assert a is not None and b is not None
    if (m is not None) != config.use_dora:
        there = "a lora_magnitude_vector, and use_dora is false" if m is not None else "none, and use_dora is true"
        raise AdapterError(f"{module} has {there}")
    for part, tensor in zip(("a", "b", "magnitude"), (a, b, m), strict=True):
        if tensor is not None and tensor.dtype not in TYPES:
            raise AdapterError(f"{parts[part]} is stored as {tensor.dtype}; supported are {', '.join(TYPES)}")
    name = _pattern_name(module, config.target_parameters or ())
    rank = int(_by_pattern(config.rank_pattern, name, config.r))
    outputs, inputs = b.shape[0] if b.shape else 0, a.shape[-1] if a.shape else 0
    experts = max(1, a.shape[0] // rank) if config.target_parameters and EXPERTS.search(module) and a.shape else 0
    ranks = rank * (experts or 1)
    wanted = {"a": (ranks, inputs), "b": (outputs, ranks), "magnitude": (outputs,)}
    for part, tensor in zip(wanted, (a, b, m), strict=True):
        if tensor is not None and tensor.shape not in (wanted[part], *([(1, outputs)] if part == "magnitude" else [])):
            raise AdapterError(f"{parts[part]} is {list(tensor.shape)} in place of {list(wanted[part])} (rank {rank})")
    alpha = _by_pattern(config.alpha_pattern, name, config.lora_alpha)
    scale = alpha / (math.sqrt(rank) if config.use_rslora else rank)
    others = rank, scale, inputs, outputs, parts.get("base"), experts
    return AdaptedLinear(module, parts["a"], parts["b"], parts.get("magnitude"), *others)


def _pattern_name(module: str, parameters: Iterable[str]) -> str:
    """What patterns are of: a layer, or a weight of experts, which is told by how many others are around it."""
    if not EXPERTS.search(module):
        return module
    experts = EXPERTS.sub("experts", module)
    own = [one for stacked in STACKED if _is_named(one := f"{experts}.{stacked}", parameters)]
    around = module.removeprefix(experts).count(".base_layer")
    return own[-1 - around] if around < len(own) else module


def _is_named(name: str, ends: Iterable[str]) -> bool:
    return any(f".{name}".endswith(f".{end}") for end in ends)


def _check_parameters(config: AdapterConfig, linears: Mapping[str, AdaptedLinear]) -> None:
    """Of which weights of experts tensors are is known of those in STACKED, of others their shapes say."""
    for parameter in config.target_parameters or ():
        module, _, last = parameter.rpartition(".")
        there = {EXPERTS.sub("experts", name) for name in linears if module or EXPERTS.search(name)}
        if not any(_is_named(f"{name}.{last}", (parameter,)) for name in there):
            raise AdapterError(f"target_parameters names {parameter}, of which the file has no tensors")
        patterns = [*(config.rank_pattern or ()), *(config.alpha_pattern or ())]
        if last not in STACKED and EXPERTS.search(module) and any(last in pattern for pattern in patterns):
            raise AdapterError(f"rank_pattern and alpha_pattern are not supported for {parameter} of target_parameters")


def _by_pattern(pattern: Mapping[str, float] | None, module: str, default: float) -> float:
    """The number of the first pattern that a layer's name, or the end of it behind a point, matches."""
    for key, value in (pattern or {}).items():
        try:
            if re.match(rf"(.*\.)?({key})$", module):
                return value
        except re.error as error:
            raise AdapterError(f"the pattern {key!r} of {CONFIG} is none: {error}") from None
    return default


def _absent(targets: list[str] | str | None, linears: Iterable[str]) -> tuple[str, ...]:
    """The names of target_modules that no layer has; AdapterError if they are a pattern, and none is of it."""
    if targets is None or targets == ALL_LINEAR:
        return ()
    if not isinstance(targets, str):
        return tuple(one for one in targets if not any(_is_named(module, (one,)) for module in linears))
    try:
        found = any(re.fullmatch(targets, module) for module in linears)
    except re.error as error:
        raise AdapterError(f"target_modules is no regular expression: {error}") from None
    if not found:
        raise AdapterError(f"target_modules names {targets}, of which the file has no tensors")
    return ()


def check_fit(adapter: Adapter, sizes: Mapping[str, tuple[int, int]], refused: Mapping[str, str]) -> None:
    """AdapterError if a layer is not the model's: `sizes` are (outputs, inputs) of those that can be adapted, and
    `refused` says of others why not, by the end of their names. Or if it was trained of more than the file has: one
    that was cut short would be another. Names that the model has not trained nothing; nor, in new files, do experts'.
    """
    own = [module for module in sizes if ".experts." not in module]
    if cut := [one for one in adapter.absent if any(_is_named(module, (one,)) for module in own)]:
        raise AdapterError(f"target_modules names {some(cut)}, of which the file has no tensors")
    for module, linear in adapter.linears.items():
        if module not in sizes:
            reason = next(
                (why for end, why in refused.items() if re.search(end, module)), "the model has no such layer"
            )
            raise AdapterError(f"{module} cannot be adapted: {reason}")
        outputs, inputs = sizes[module]
        if linear.inputs != inputs:
            raise AdapterError(f"{linear.a} is {[linear.rank, linear.inputs]}; the model needs {[linear.rank, inputs]}")
        if linear.outputs != outputs:
            raise AdapterError(
                f"{linear.b} is {[linear.outputs, linear.rank]}; the model needs {[outputs, linear.rank]}"
            )
