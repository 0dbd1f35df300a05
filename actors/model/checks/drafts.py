"""What drafts for a model, a smaller one or heads, as --speculative-config names it: found before it is loaded."""

from __future__ import annotations

from pathlib import Path

import msgspec

from ...options.config import Config, ConfigError
from ...options.objects.speculative import (
    OPTION,
    DFlashOptions,
    DraftModelOptions,
    Eagle3Options,
    EagleOptions,
    HeadOptions,
    LookupOptions,
    MedusaOptions,
    MtpOptions,
    read_speculative,
)
from ..architecture import Architecture
from ..config_json import find_architecture
from ..heads.blocks import MASK_FILE, read_blocks
from ..heads.checkpoints import MEDUSA_FILES, Head, read_eagle, read_medusa, read_mtp
from ..heads.formats import DraftShape, Shape
from ..info import ModelInfo, read_json, resolve_model
from ..memory.dtypes import kv_type_of
from ..memory.kv import KVSpec, KVType
from ..memory.kv_memory import check_kept
from ..names import find_folder
from ..weights.weight_files import check_weights


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
        config_format="auto",
        load_format="dummy" if config.load_format == "dummy" else "auto",
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
    files = MEDUSA_FILES if isinstance(given, MedusaOptions) else ()
    folder = find_folder(given.model, None, files=files, more=(MASK_FILE,))
    if not folder.is_dir():
        raise ConfigError(f"model: {folder} is a GGUF file; heads are read of safetensors and PyTorch's files")
    if isinstance(given, MedusaOptions):
        return read_medusa(folder, target, given.num_speculative_tokens)
    if isinstance(given, DFlashOptions):
        return read_blocks(folder, target, given.num_speculative_tokens)
    assert isinstance(given, EagleOptions | Eagle3Options)
    return read_eagle(folder, target, isinstance(given, Eagle3Options))


def block_bytes(kv: KVSpec, block_size: int, kind: KVType) -> int:
    """The size of a KV block of this type."""
    check_kept(kv, kind)
    return kv.block_bytes(block_size, kind)


def head_block_bytes(shape: Shape, block_size: int, kind: KVType) -> int:
    """The size of a KV block of a head."""
    return block_bytes(shape.kv, block_size, kind) if isinstance(shape, DraftShape) else 0


def draft_refused(given: DraftModelOptions | HeadOptions, error: ConfigError) -> ConfigError:
    """The same, and that it is about what drafts."""
    about = "method: mtp" if isinstance(given, MtpOptions) else f"model: {given.model}"
    reason = str(error).removeprefix("model: ")
    if reason.startswith("num_speculative_tokens"):
        return type(error)(f"{OPTION}: {reason}")
    return type(error)(f"{OPTION}: {about}: {reason}")


def check_drafts(config: Config, model: ModelInfo) -> int:
    """What the worker would refuse of the draft model later; returns the bytes of a KV block in it."""
    given = read_speculative(config)
    assert isinstance(given, DraftModelOptions)
    shape = read_shape(config, model)
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


def read_shape(config: Config, model: ModelInfo) -> Architecture | None:
    """The layers of a model; None: they are not this server's own."""
    path = Path(model.folder) / "config.json"
    return find_architecture(read_json(path), config.model_impl, config.quantization, path)
