"""The part of a model of transformers that makes embeddings of pictures or sounds: its own modules, filled from the
checkpoint.

The text part is made with one layer and without weights, and dropped: what is left is the tower, the projector and the
functions around them (`get_image_features`, `get_rope_index`).
"""

from __future__ import annotations

import inspect
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import nn
from transformers import AutoConfig, AutoModelForImageTextToText, AutoModelForMultimodalLM, PreTrainedModel
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import convert_and_load_state_dict_in_model
from transformers.modeling_utils import LoadStateDictConfig

from ...model.config_json import weights_method
from ...model.info import ModelInfo, read_json
from ...model.values import Values
from ...model.vision.texts import text_name, text_values
from ...model.weights.places import some
from ...options.config import Config, ConfigError
from ...protocol.media import AUDIO
from ..adapter.checkpoint.arriving import without_weights
from ..adapter.checkpoint.model_class import VERSION, code_of_others
from ..adapter.checkpoint.reading import in_turn
from ..adapter.checkpoint.stored import Source

OF_TEXT = ("tok_embeddings.", "layers.", "norm.", "output.", "lerope.", "mtp_")  # as Mistral names them
TEXT_PARTS = ("language_model", "text_model", "lm_head")
SQUEEZED = (
    "mistral3",
    "mistral_large4",
)  # they drop the projector's first dimension if it is 1, as if it were a batch's
HEARING = ("audio_tower", "embed_audio")  # of one that is not asked to hear


def load_tower(config: Config, info: ModelInfo, dtype: torch.dtype) -> PreTrainedModel:
    """transformers' model around its text part, ready to be asked. ConfigError says what does not fit."""
    with code_of_others(partial(_refused, info)), torch.random.fork_rng(devices=[]):
        dummy = config.load_format == "dummy"
        torch.manual_seed(config.seed)
        model = _make(info, dtype, dummy)
        if not dummy:
            _fill(model, Path(info.folder), config, dtype)
        _drop(model, TEXT_PARTS if AUDIO in info.media else (*TEXT_PARTS, *HEARING))
    inner: PreTrainedModel = model.model.eval().requires_grad_(False)
    if inner.config.model_type in SQUEEZED:
        projector: Any = inner.multi_modal_projector
        projector.register_forward_hook(lambda _module, _given, rows: rows[None])
    return inner


class TowerFacts(NamedTuple):
    """What `check` says of it."""

    parameters: int


def tower_facts(info: ModelInfo) -> TowerFacts:
    """Without its weights. ConfigError if it cannot be made."""
    with code_of_others(partial(_refused, info)):
        model = _make(info, torch.float32, dummy=False)
        _drop(model, TEXT_PARTS if AUDIO in info.media else (*TEXT_PARTS, *HEARING))
    return TowerFacts(sum(parameter.numel() for parameter in model.parameters()))


def arguments(model: PreTrainedModel, name: str) -> set[str]:
    """Of a function of it."""
    return set(inspect.signature(getattr(model, name)).parameters)


def _make(info: ModelInfo, dtype: torch.dtype, dummy: bool) -> Any:
    about: Any = AutoConfig.from_pretrained(info.folder, local_files_only=True)
    text = about.get_text_config(decoder=True)
    for part in (about, text):
        if hasattr(part, "quantization_config"):  # weights are decoded here
            del part.quantization_config
    text.num_hidden_layers = 1
    if getattr(text, "layer_types", None):
        text.layer_types = text.layer_types[:1]
    if getattr(text, "num_kv_shared_layers", None):
        text.num_kv_shared_layers = 0
    hears = info.vision is not None and info.vision.hears
    kind: Any = AutoModelForMultimodalLM if hears else AutoModelForImageTextToText
    if dummy:
        return kind.from_config(about, dtype=dtype)
    with without_weights():
        return kind.from_config(about, dtype=dtype)


def _fill(model: Any, folder: Path, config: Config, dtype: torch.dtype) -> None:
    """All that is not the text's, tensor by tensor, decoded where the checkpoint has it quantised."""
    file = folder / "config.json"
    _, stored = weights_method(Values(file, text_values(read_json(file), file)), config.quantization)
    source = Source(folder, stored)
    own = {
        name: tensor
        for name, tensor in source.tensors.items()
        if text_name(name) is None and not name.startswith(OF_TEXT)
    }
    about = LoadStateDictConfig(
        ignore_mismatched_sizes=True,
        dtype=dtype,
        dtype_plan=model._get_dtype_plan(dtype),
        weight_mapping=get_model_conversion_mapping(model),  # type: ignore[arg-type]
    )
    with in_turn():
        info, _ = convert_and_load_state_dict_in_model(model, own, about)
    if source.error is not None:
        raise source.error
    problems = []
    if missing := sorted(name for name in info.missing_keys if not _is_text(name)):
        problems.append(f"lacks {some(missing)}")
    if unknown := sorted(info.unexpected_keys):
        problems.append(f"has {some(unknown)}, for which the model has no use")
    if info.mismatched_keys:
        told = (f"{name} {list(found)} in place of {list(wanted)}" for name, found, wanted in info.mismatched_keys)
        problems.append(f"has the shape of {some(sorted(told))}")
    if problems:
        raise ConfigError(f"model: the weights in {folder} do not fit its config.json: it {'; it '.join(problems)}")


def _is_text(name: str) -> bool:
    return any(part in TEXT_PARTS for part in name.split("."))


def _drop(model: Any, names: tuple[str, ...]) -> None:
    for parent in list(model.modules()):
        for name in names:
            if name in parent._modules:
                setattr(parent, name, nn.Module())


def _refused(info: ModelInfo, reason: str) -> ConfigError:
    return ConfigError(f"model: {info.architecture} cannot be served: {VERSION} does not make its tower ({reason})")
