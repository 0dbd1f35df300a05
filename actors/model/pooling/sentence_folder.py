"""A model of sentence-transformers that is kept in a folder of its own inside of the one that modules.json is in.

So CLIP is kept (0_CLIPModel), and what was written before models lay beside modules.json (0_Transformer). All others
know a model's files in one folder: it is made of links to both.
"""

from __future__ import annotations

from pathlib import Path

from ...options.config import ConfigError
from ..cached import file_state, linked_folder
from .sentence_transformers import MODELS, MODULES, PATH, has_modules, module_paths, read_listed


def model_within(folder: Path) -> Path:
    """The folder of all of a model's files: this one, unless it has its model in a folder inside."""
    if (folder / "config.json").exists() or not has_modules(folder):
        return folder
    path, _ = model_place(folder)
    if path == Path():
        return folder
    if not (folder / path / "config.json").exists():
        raise ConfigError(f"model: {folder / path}/config.json is missing, where {folder / MODULES} has its model")
    first, *others = read_listed(folder / MODULES)
    sources = {"of": str(folder), "modules": file_state(folder / MODULES)}
    own = {MODULES: [first | {PATH: ""}, *others]}
    return linked_folder("sentence", [folder / path, folder], sources, lambda: own)


def model_place(folder: Path) -> tuple[Path, list[str]]:
    """(where in the folder of modules.json the model's own files are, folders of modules behind it)."""
    if not has_modules(folder):
        return Path(), []
    (kind, first), *others = module_paths(folder / MODULES)
    own = first if kind in MODELS and not (folder / "config.json").exists() else ""
    return Path(own), [path for _, path in others if path]
