"""Code of whoever runs the server, named by an option: `module:name`, `FILE.py:name`, or the name of an entry point;
and `module.name`, as vLLM has it.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import site
import sys
import sysconfig
from importlib.machinery import PathFinder
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from .config import ConfigError

WORKER_EXTENSIONS = "actorserve.worker_extensions"  # groups of entry points
WORKERS = "actorserve.workers"
TOOL_PARSERS = "actorserve.tool_parsers"
LOGITS_PROCESSORS = "actorserve.logits_processors"
IO_PROCESSORS = "actorserve.io_processor_plugins"
REASONING_PARSERS = "actorserve.reasoning_parsers"
MODULE, ANY = "a module", "*"  # how a source may make a name: by an import of it, or by what is only seen as it runs


def _divided(given: str, group: str) -> tuple[str, str, str]:
    """(module or file, nothing for an entry point, name)."""
    dotted = ":" not in given and "." in given and not given.endswith(".py")
    return given.rpartition("." if dotted and not entry_points(group=group, name=given) else ":")


def load_plugin(option: str, given: str, group: str) -> Any:
    """What it names. ConfigError says what is wrong with it; whatever its own code raises is raised."""
    place, mark, name = _divided(given, group)
    if not mark:
        found = entry_points(group=group, name=given)
        if not found:
            raise ConfigError(_no_entry_point(option, given, group))
        return next(iter(found)).load()
    module = load_file(option, place) if place.endswith(".py") else _import(option, place)
    if not hasattr(module, name):
        raise ConfigError(f"{option}: {place} has no {name}")
    return getattr(module, name)


def load_callable(option: str, given: str, group: str) -> Any:
    """The same of what has to be a class, or a function that makes what a class would."""
    found = load_plugin(option, given, group)
    if not callable(found):
        raise ConfigError(f"{option}: {given} is {_kind_of(found)}, and no class")
    return found


def _kind_of(found: object) -> str:
    return "a module" if isinstance(found, ModuleType) else f"of the type {type(found).__name__}"


def _no_entry_point(option: str, given: str, group: str) -> str:
    names = ", ".join(sorted(entry_points(group=group).names)) or "none"
    text = f"it is no module:name, and no entry point of the group {group}, where there are: {names}"
    return f"{option}: {given}: {text}"


def check_plugin(option: str, given: str, group: str) -> None:
    """ConfigError if there is nothing that it names, as far as that is seen without running any code of it."""
    place, mark, name = _divided(given, group)
    if not mark:
        if not entry_points(group=group, name=given):
            raise ConfigError(_no_entry_point(option, given, group))
        return
    file = Path(place)
    if place.endswith(".py"):
        if not file.is_file():
            raise ConfigError(f"{option}: there is no file {place} of Python")
    elif (found := _file_of(option, place)) is None:
        return  # a module of C, or one that is made as it is imported
    else:
        file = found
    if not name:
        return
    made = _kinds(file, name, option)
    if not made:
        raise ConfigError(f"{option}: {place} has no {name}")
    if made == {MODULE}:
        raise ConfigError(f"{option}: {given} is a module, and no class")


def folder_of(given: str) -> str | None:
    """The entry of sys.path with the module of what is named, where that is none of those that each Python has: the
    folder of a script, for one, which other processes do not look into.
    """
    place, mark, _ = _divided(given, "")
    if not mark or place.endswith(".py"):
        return None
    first = place.partition(".")[0]
    entry = next((one for one in sys.path if PathFinder.find_spec(first, [one]) is not None), None)
    paths = sysconfig.get_paths()
    every = {*(paths[name] for name in ("stdlib", "platstdlib", "purelib", "platlib")), *site.getsitepackages()}
    return None if entry is None or entry in every else str(Path(entry).absolute())


def _file_of(option: str, module: str) -> Path | None:
    """Where it is; what it lies in is looked for, and not imported."""
    path: list[str] | None = None
    first = module.partition(".")[0]
    for part in module.split("."):
        spec = PathFinder.find_spec(part, path)  # by its last name: a whole one has its parents imported
        if spec is None:
            if path is not None or first in sys.modules or importlib.util.find_spec(first) is not None:
                return None
            raise ConfigError(f"{option}: there is no module {first}")
        path = list(spec.submodule_search_locations or ())  # a module has nothing in it
    return Path(spec.origin) if spec is not None and spec.origin and spec.origin.endswith(".py") else None


def _kinds(file: Path, name: str, option: str) -> set[str]:
    """How a module's source makes this name, or may make it; nothing if it does not."""
    try:
        tree = ast.parse(file.read_bytes())
    except (SyntaxError, ValueError, OSError) as error:
        raise ConfigError(f"{option}: {file} cannot be read: {error}") from None
    first, found = name.partition(".")[0], set()
    for node in ast.walk(tree):
        match node:
            case ast.ClassDef(name=own) | ast.FunctionDef(name=own) | ast.AsyncFunctionDef(name=own):
                made = {own, ANY} if own == "__getattr__" else {own}
            case ast.Import(names=names):
                if first in {one.asname or one.name.partition(".")[0] for one in names}:
                    found.add(MODULE)
                continue
            case ast.ImportFrom(names=names):
                made = {one.asname or one.name for one in names} - {ANY}
                if any(one.name == ANY for one in names):
                    found.add(ANY)
            case ast.Name(id=own, ctx=ast.Store()):
                made = {own}
            case ast.Call(func=ast.Name(id="globals" | "setattr" | "exec")):
                made = {ANY}
            case _:
                continue
        found |= {ANY} & made
        if first in made:
            found.add(name)
    return {MODULE} if MODULE in found and name not in found else found


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
