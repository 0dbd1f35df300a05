"""--enable-lora and what goes with it: which adapters are there from the start, and where others are found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from ..protocol.media import MODALITIES
from .config import Config, ConfigError

OPTION, BY_DEFAULT = "--lora-modules", "--default-mm-loras"


class LoraModule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An adapter of the command line; as JSON with vLLM's names, or as name=path."""

    name: str
    path: str
    base_model_name: str | None = None


def read_modules(config: Config) -> list[LoraModule]:
    """Those of --lora-modules. ConfigError says which of them is wrong."""
    served, found = set(config.served_names()), list(map(_module, config.lora_modules))
    found += [LoraModule(modality, path) for modality, path in default_paths(config).items()]
    for index, module in enumerate(found):
        if problem := trouble_with_name(module.name):
            raise ConfigError(f"{OPTION}: {problem}")
        if module.name in served or module.name in {other.name for other in found[:index]}:
            raise ConfigError(f"{OPTION}: the name {module.name} is given twice, or is the model's own")
        if module.base_model_name is not None and module.base_model_name not in served:
            text = (
                f"{OPTION}: {module.name}: base_model_name is {module.base_model_name}; served is {', '.join(served)}"
            )
            raise ConfigError(text)
    return found


def default_paths(config: Config) -> dict[str, str]:
    """By its modality, what --default-mm-loras says."""
    given = config.json_object("default_mm_loras")
    for modality, path in given.items():
        if modality not in MODALITIES:
            raise ConfigError(f"{BY_DEFAULT}: {modality} is none of {', '.join(MODALITIES)}")
        if not isinstance(path, str) or not path:
            raise ConfigError(f"{BY_DEFAULT}: {modality}: the path of an adapter is wanted, not {path!r}")
    return given


def trouble_with_name(name: str) -> str:
    """Why an adapter cannot have this name; nothing if it can."""
    if not name or not name.isprintable() or name != name.strip():
        return f"{name!r:.60} is no name of an adapter: it needs characters that can be printed, without blanks around"
    return ""


def found_in_folder(folder: str, name: str) -> str | None:
    """The path of an adapter of this name in --lora-folder, if there is one: a folder right in it."""
    if not name or name in (".", "..") or Path(name).name != name or "\0" in name:
        return None
    path = Path(folder) / name
    return str(path) if (path / "adapter_config.json").is_file() else None


def check_lora(config: Config) -> None:
    """ConfigError for options that do not go together."""
    if not config.enable_lora:
        for name in ("lora_modules", "lora_folder", "default_mm_loras"):
            if getattr(config, name):
                raise ConfigError(f"--{name.replace('_', '-')} goes with --enable-lora")
        return
    if config.worker != "model":
        raise ConfigError("--enable-lora: --worker scripted computes nothing, so that there is nothing to adapt")
    if config.record is not None:
        raise ConfigError("--enable-lora: --record does not keep what adapters there were; leave one of them out")
    if config.adapters_in_memory() < config.adapters_at_once():
        raise ConfigError(f"--max-cpu-loras must not be less than --max-loras, which is {config.max_loras}")
    if config.lora_folder is not None and not Path(config.lora_folder).is_dir():
        raise ConfigError(f"--lora-folder: there is no folder {config.lora_folder}")
    read_modules(config)


def _module(text: str) -> LoraModule:
    if not text.startswith("{"):
        name, is_pair, path = text.partition("=")
        if not is_pair or not path:
            raise ConfigError(f"{OPTION}: {text!r:.80} is no name=path")
        return LoraModule(name, path)
    try:
        values: Any = msgspec.json.decode(text)
        return msgspec.convert(values, LoraModule)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{OPTION}: {text:.80}: {error}") from None
