"""Code of whoever runs the server, named by an option: `module:name`, `FILE.py:name`, or the name of an entry point."""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .config import ConfigError

WORKER_EXTENSIONS = "actorserve.worker_extensions"  # groups of entry points
TOOL_PARSERS = "actorserve.tool_parsers"
REASONING_PARSERS = "actorserve.reasoning_parsers"


def load_plugin(option: str, given: str, group: str) -> Any:
    """What it names. ConfigError says what is wrong with it; whatever its own code raises is raised."""
    place, mark, name = given.rpartition(":")
    if not mark:
        found = entry_points(group=group, name=given)
        if not found:
            names = ", ".join(sorted(entry_points(group=group).names)) or "none"
            text = f"it is no module:name, and no entry point of the group {group}, where there are: {names}"
            raise ConfigError(f"{option}: {given}: {text}")
        return next(iter(found)).load()
    module = load_file(option, place) if place.endswith(".py") else _import(option, place)
    if not hasattr(module, name):
        raise ConfigError(f"{option}: {place} has no {name}")
    return getattr(module, name)


def load_file(option: str, path: str) -> ModuleType:
    """The module of a file, which runs once in each process."""
    file = Path(path)
    name = f"actorserve_plugin_{hashlib.sha256(str(file.resolve()).encode()).hexdigest()[:16]}"
    if name in sys.modules:
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, file)
    if not file.is_file() or spec is None or spec.loader is None:
        raise ConfigError(f"{option}: there is no file {path} of Python")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _import(option: str, name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not name.startswith(error.name):
            raise
        raise ConfigError(f"{option}: there is no module {error.name}") from None
