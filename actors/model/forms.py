"""From what a model's name leads to, to a folder in the one form that all others read: that of the hub.

Such a folder is made of a GGUF file, of a model in a folder inside, of params.json in Mistral's own form, and where
config.json is to be otherwise.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from ..options.config import Config, ConfigError
from .cached import file_state, linked_folder, merged
from .config_json import overridden
from .formats.places import told_elsewhere
from .gguf.folder import model_folder
from .memory.machine import may_have_gpu
from .mistral.folder import form_of, hub_folder
from .pooling.sentence_folder import model_within
from .quantization import AUTO, GGUF
from .values import read_json
from .weights.places import files_there
from .weights.weight_files import float_type, tensor_names

UNSAID = "float32"  # what is read of a config.json that names no type
FIRST_NAMES = {"lfm2-vl": "lfm2_vl"}  # kinds that were published before transformers had them


def without_gguf(config: Config, found: Path, with_tokenizer: bool) -> Path:
    """The folder of a model's files, made of a GGUF file where it is one.

    Quantised weights become int8 on a CPU; on a GPU, and where --dtype or --quantization says more, they are decoded.
    """
    if found.is_dir():
        return found
    asked, safetensors = form_of(config), config.load_format == "safetensors"
    if asked is not None or safetensors:
        option = "--load-format safetensors" if asked is None else asked.option
        raise ConfigError(f"{option}: {found} is a GGUF file; auto reads it")
    on_gpu = config.device != "cpu" and may_have_gpu()
    keep = config.quantization == GGUF.name or (config.quantization == AUTO and config.dtype == "auto" and not on_gpu)
    return model_folder(found, keep, with_tokenizer)


def as_read(config: Config, folder: Path) -> Path:
    """The same folder, or one of links to its files, but that its model may lie in a folder inside, and config.json is
    made of params.json where weights are in Mistral's own form, and says what stands elsewhere, and what --hf-overrides
    wants.
    """
    folder = hub_folder(model_within(folder), form_of(config))
    changes = config.json_object("hf_overrides")
    if not (folder / "config.json").exists():
        return folder
    before = read_json(folder / "config.json")
    elsewhere = told_elsewhere(folder, before, partial(tensor_names, folder))
    elsewhere |= _type_of_weights(config, folder, before, changes) | _name_of_kind(before)
    if not changes and not elsewhere:
        return folder
    sources = {"of": str(folder), "config": file_state(folder / "config.json"), "changes": [elsewhere, changes]}
    whole = merged(before, elsewhere)
    return linked_folder("overridden", [folder], sources, lambda: {"config.json": overridden(whole, changes)})


def _name_of_kind(values: Mapping[str, Any]) -> dict[str, str]:
    """A `model_type` by the name that transformers has for it."""
    kind = values.get("model_type")
    return {"model_type": FIRST_NAMES[kind]} if isinstance(kind, str) and kind in FIRST_NAMES else {}


def _type_of_weights(config: Config, folder: Path, *values: Mapping[str, Any]) -> dict[str, str]:
    """`dtype` of a config.json that says none, as gpt-oss' does: that of the weights, as transformers has it. `values`:
    its own, and what they are changed to.
    """
    parts = [part for one in values for part in (one, one.get("text_config")) if isinstance(part, dict)]
    if config.load_format == "dummy" or any(part.get(name) for part in parts for name in ("dtype", "torch_dtype")):
        return {}
    found = float_type(files_there(folder))
    return {} if found in (None, UNSAID) else {"dtype": found}
