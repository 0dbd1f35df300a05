"""Other weights for the model that is served: which folders may be named, and whether what lies there would fit.

All that can be seen without loading them is looked at here, since a worker that cannot load them costs a pause.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from actorserve.shm.weights import WeightsRecord

from ...model.architecture import find_architecture, read_architecture
from ...model.info import ModelInfo, read_json, resolve_model
from ...model.weights.weight_files import check_weights
from ...options.config import Config, ConfigError
from ...protocol.request import Generation
from ...runtime.process import Context

FREE = frozenset({"_name_or_path", "transformers_version", "torch_dtype", "dtype"})  # of config.json: may be others


def find_weights(config: Config, model: ModelInfo, path: str) -> str:
    """The folder to load from; empty: the served model's, as it is now. ConfigError says why it cannot be."""
    if config.worker != "model":
        raise ConfigError("--worker scripted has no weights")
    folder = Path(path).resolve() if path else Path(model.folder)
    own = Path(model.folder).resolve()
    if folder != own and not any(folder.is_relative_to(Path(root).resolve()) for root in config.weights_folder):
        raise ConfigError("weights are loaded from the served model's folder, or from below a --weights-folder")
    if not folder.is_dir():
        raise ConfigError(f"there is no folder {folder}")
    if config.load_format != "dummy":
        _check_files(config, model, folder)
    return "" if folder == own else str(folder)


def _check_files(config: Config, model: ModelInfo, folder: Path) -> None:
    """The same shape, and whole."""
    values, own = read_json(folder / "config.json"), read_json(Path(model.folder) / "config.json")
    if _fixed(values) != _fixed(own):
        names = sorted(name for name in {*values, *own} - FREE if values.get(name) != own.get(name))
        raise ConfigError(f"{folder} is another model: its config.json differs in {', '.join(names)}")
    resolve_model(msgspec.structs.replace(config, model=str(folder), tokenizer=model.tokenizer_folder or None))
    if find_architecture(values, config.model_impl, config.quantization) is not None:
        check_weights(folder, read_architecture(values, quantization=config.quantization))


def _fixed(values: Any) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in FREE}


class WeightsSalt:
    """Only requests of the same weights share prefixes, also where these are kept outside of a worker's memory."""

    def __init__(self, context: Context) -> None:
        self._record = WeightsRecord(context.files["weights"], 0)
        self._decode, self._encode = msgspec.msgpack.Decoder(Generation).decode, msgspec.msgpack.Encoder().encode

    def add(
        self, packed: list[bytes], renderings: list[Mapping[str, Any]]
    ) -> tuple[list[bytes], list[Mapping[str, Any]]]:
        """A request's parameters and its prompts' renderings, with the generation in their cache salt. One that another
        is loaded for before it is computed has the salt of the one before, whose prefixes were dropped.
        """
        generation = self._record.generation
        if not generation:
            return packed, renderings
        mark = f"\0weights {generation}"
        params = [self._decode(one) for one in packed]
        salted = [msgspec.structs.replace(one, cache_salt=one.cache_salt + mark) for one in params]
        return list(map(self._encode, salted)), [
            {**rendering, "cache_salt": rendering.get("cache_salt", "") + mark} for rendering in renderings
        ]
