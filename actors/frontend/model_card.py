"""What clients may read of the model: family, size, type of its weights, special tokens. Read when it is asked for."""

from __future__ import annotations

import asyncio
import hashlib
import logging
import math
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

import actorserve
from actorserve.http.generation.trail import MODEL_MARK
from actorserve.http.settings import ModelCard

from ..model.info import ModelInfo, read_json
from ..model.weights.weight_files import StoredTensor, read_weights
from ..options.config import Config, ConfigError

NUMERIC = (  # options that answers depend on
    *("revision", "dtype", "quantization", "kv_cache_dtype", "device", "model_impl", "deterministic", "cpu_kernels"),
    *("tensor_parallel_size", "enable_expert_parallel", "load_format", "seed", "worker"),
)
LICENSE = re.compile(r"(?i)(licen[cs]e|copying)(\.(txt|md))?")  # names of files
log = logging.getLogger("frontend")
MOST_LICENSE = 256 << 10  # bytes of it
PACKED = ("I32", "I64", "U32")  # several weights in a number: how many there are, their shapes do not say


async def card_of(config: Config, model: ModelInfo) -> ModelCard:
    """Of the model that is served; of weights that are not there, as with --load-format dummy, nothing is said, nor of
    a folder that has gone since the start. A large model has hundreds of files: others have their turns meanwhile.
    """
    without_weights = config.load_format == "dummy" or config.worker == "scripted"
    try:
        return await asyncio.to_thread(_read, Path(model.folder), model.architecture, without_weights)
    except (ConfigError, OSError):
        return ModelCard(model.architecture)


def fingerprint_of(config: Config, model: ModelInfo) -> str:
    """The same for servers whose answers may be expected to be: of one version, model and way to compute it. Behind the
    mark is what servers have in common that can go on with each other's tokens: the model's kind and sizes.
    """
    told, file = [getattr(config, name) for name in NUMERIC], Path(model.folder) / "config.json"
    about = repr((actorserve.__version__, config.model, file.read_bytes(), told))
    text = _text_part(read_json(file))
    sizes = model.architecture, model.vocab_size, *(text.get(name) for name in ("hidden_size", "num_hidden_layers"))
    whole, alike = (hashlib.sha256(one.encode()).hexdigest() for one in (about, repr(sizes)))
    return f"fp_{whole[:10]}{MODEL_MARK}{alike[:6]}"


def _text_part(about: dict[str, Any]) -> dict[str, Any]:
    """Of config.json what tells of the part that makes texts."""
    return next((part for name in ("text_config", "llm_config") if isinstance(part := about.get(name), dict)), about)


def added_tokens(model: ModelInfo) -> dict[str, int]:
    """The ids of the tokens that its tokenizer knows beside its words: special ones."""
    return _read_added(Path(model.tokenizer_folder)) if model.tokenizer_folder else {}


class _Added(msgspec.Struct):
    id: int
    content: str


class _TokenizerFile(msgspec.Struct):
    added_tokens: list[_Added] = []


@cache
def _read_added(folder: Path) -> dict[str, int]:
    found = msgspec.json.decode((folder / "tokenizer.json").read_bytes(), type=_TokenizerFile)
    return {token.content: token.id for token in found.added_tokens}


@cache
def _read(folder: Path, architecture: str, without_weights: bool) -> ModelCard:
    about = read_json(folder / "config.json")
    text = _text_part(about)
    try:
        tensors = {} if without_weights else read_weights(folder)
    except ConfigError:
        tensors = {}
    packed = any(tensor.dtype in PACKED for tensor in tensors.values())
    family = about.get("model_type")
    names = "hidden_size", "max_position_embeddings", "num_hidden_layers", "num_attention_heads", "num_key_value_heads"
    hidden, longest, layers, heads, kv_heads = (
        value if isinstance(value := text.get(name), int) else 0 for name in names
    )
    return ModelCard(
        architecture,
        family if isinstance(family, str) else "",
        hidden,
        sum(tensor.size for tensor in tensors.values()),
        0 if packed else sum(math.prod(tensor.shape) for tensor in tensors.values()),
        _stored_as(tensors),
        int((folder / "config.json").stat().st_mtime),
        longest,
        layers,
        heads,
        kv_heads or heads,
        _license_of(folder),
    )


def _license_of(folder: Path) -> str:
    """The text of the first of its files that is one; of a longer one the beginning. What is no text, or cannot be
    read, is none.
    """
    for path in sorted(folder.iterdir()):
        if not LICENSE.fullmatch(path.name) or not path.is_file():
            continue
        try:
            with path.open("rb") as file:
                text = file.read(MOST_LICENSE)
        except OSError as error:
            log.warning("%s cannot be read, and no license is told of it: %s", path, error)
            continue
        if b"\0" not in text:
            return text.decode(errors="replace").strip()
    return ""


def _stored_as(tensors: dict[str, StoredTensor]) -> str:
    """The type that most bytes of the weights have."""
    by_type: Counter[str] = Counter()
    for tensor in tensors.values():
        by_type[tensor.dtype] += tensor.size
    return by_type.most_common(1)[0][0] if by_type else ""
