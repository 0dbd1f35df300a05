"""What a server and an engine on another machine must have in common, as their greeting says it (engine_wire.py)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import msgspec

import actorserve

from ...model.info import ModelInfo
from ...options.config import Config
from ...options.fields import flag
from ..request import CPU_ONLY, OF_ONE_MACHINE, Generation, Rendition
from .engine_wire import Moved, ToLink, ToSteward
from .file_digests import digest_of, weights_digest
from .node_wire import differences

ALIKE = (  # options
    *("dtype", "quantization", "deterministic", "kv_cache_dtype", "block_size", "model_impl", "load_format", "seed"),
    *("worker", "enable_prefix_caching", "mm_processor_kwargs", "trust_remote_code", "logits_processor_pattern"),
    *("enable_lora", "max_lora_rank", "max_logprobs"),
)
PRIORITY = "priority"  # the field of requests, and the policy
END_TOKENS = "end tokens (generation_config.json, config.json, tokenizer, --override-generation-config)"  # of any
TOKENIZER = "tokenizer.json"  # whatever it was made of


def facts_of(config: Config, model: ModelInfo) -> dict[str, str]:
    """By the names under which a difference is told. Reads the model's files."""
    folder = Path(model.folder)
    tokenizer = Path(model.tokenizer_folder or model.folder) / TOKENIZER
    computes = config.worker == "model" and config.load_format != "dummy"
    return {
        "version": actorserve.__version__,
        "layout of records": _layout(),
        "model (config.json)": digest_of([folder / "config.json"]),
        "weights": weights_digest(model.folder) if computes else config.load_format,
        "tokenizer": digest_of([tokenizer] if tokenizer.is_file() else []),
        "--max-model-len": str(model.max_model_len),
        "how it pools": str(model.pooling),
        END_TOKENS: str(model.end_tokens),
        "--logits-processors": _processors(config),
        **{flag(name): str(getattr(config, name)) for name in ALIKE},
    }


def refusal_of(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """What differs, as the other side is told it; nothing if nothing does."""
    found = differences(here, there)
    return f"it differs: {found}" if found else ""


def unheeded_of(config: Config, on_gpu: bool) -> list[str]:
    """The parameters of requests of which an engine here does nothing, where another one may."""
    found = [*(CPU_ONLY if on_gpu else OF_ONE_MACHINE)]
    return found if config.scheduling_policy == PRIORITY else [*found, PRIORITY]


def _processors(config: Config) -> str:
    """Their names, and of files what stands in them: they may lie elsewhere there."""
    told = []
    for given in config.logits_processors:
        place, mark, name = given.rpartition(":")
        file = Path(place)
        is_file = bool(mark) and file.suffix == ".py" and file.is_file()
        told.append(f"{file.name}:{name} ({digest_of([file])})" if is_file else given)
    return " ".join(told) or "none"


def _layout() -> str:
    """Of all records, and of what they hold as bytes."""
    types = msgspec.inspect.multi_type_info((ToSteward, ToLink, Moved, Generation, Rendition))
    return hashlib.sha256(repr(types).encode()).hexdigest()[:16]
