"""Other weights for the model that is served: which folders may be named, and whether what lies there would fit.

All that can be seen without loading them is looked at here, since a worker that cannot load them costs a pause.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ...options.config import Config, ConfigError
from ..config_json import find_architecture, read_architecture
from ..forms import as_read
from ..gguf.folder import SOURCES
from ..info import DEMO_FOLDER, ModelInfo, read_json, resolve_model
from ..names import check_folder
from .weight_files import check_weights

FREE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})  # of config.json: may be others


def find_weights(config: Config, model: ModelInfo, path: str) -> str:
    """The folder to load from; empty: the served model's, as it is now. ConfigError says why it cannot be."""
    if config.worker != "model":
        raise ConfigError("--worker scripted has no weights")
    own, named = Path(model.folder).resolve(), Path(config.model or DEMO_FOLDER).expanduser().resolve()
    folder = Path(path).resolve() if path else own
    folder = own if folder == named else folder
    if folder != own and not any(folder.is_relative_to(Path(root).resolve()) for root in config.weights_folder):
        raise ConfigError("weights are loaded from the served model's folder, or from below a --weights-folder")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    is_of_gguf = (own / SOURCES).is_file()  # which is named by its folder, too, and says itself whether it has changed
    if folder == own and named.is_dir() and not is_of_gguf:  # what is read may be links to the files that it had
        folder = own if as_read(config, named).resolve() == own else named
    if config.load_format != "dummy":
        _check_files(config, model, folder)
    return "" if folder == own else str(folder)


def _check_files(config: Config, model: ModelInfo, folder: Path) -> None:
    """The same shape, and whole. Of both counts config.json as it is read, not as it lies there."""
    is_other = folder != Path(model.folder).resolve()
    there = as_read(config, folder) if is_other else folder
    check_folder(there)
    values, own = (read_json(one / "config.json") for one in (there, Path(model.folder)))
    if _fixed(values) != _fixed(own):
        names = sorted(name for name in {*values, *own} - FREE if values.get(name) != own.get(name))
        raise ConfigError(f"{folder} is another model: its config.json differs in {', '.join(names)}")
    if is_other:
        resolve_model(msgspec.structs.replace(config, model=str(folder), tokenizer=model.tokenizer_folder or None))
    if find_architecture(values, config.model_impl, config.quantization) is not None:
        check_weights(there, read_architecture(values, quantization=config.quantization))


def _fixed(values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in FREE}
