"""A folder in Mistral's own form as one that all others know: config.json and so on, made of its params.json.

Such folders are kept (cached.py), with links to all other files; MARK in them says that weights are in that form, and
what their names and rows depend on (names.py).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from ...options.config import Config, ConfigError
from ..cached import file_state, linked_folder
from ..values import Values, read_json
from ..weights.places import OF_MISTRAL
from ..weights.weight_files import float_type
from .config import make_config, make_processors, make_turning
from .latent import is_latent
from .names import MARK

PARAMS = "params.json"
CONFIG = "config.json"
ASKING = {"--config-format": "config_format", "--load-format": "load_format"}  # either asks for a form
FORMS = ("hf", "mistral")  # safetensors may be of either
VERSION = 2  # of what is made of it
IN_TEXTS = "language_model."  # what names begin with beside a tower


class Form(NamedTuple):
    """That an option asks for."""

    name: str  # hf or mistral
    option: str


def form_of(config: Config) -> Form | None:
    """What the options ask for; ConfigError if it is both."""
    asked = [(name, getattr(config, field)) for name, field in ASKING.items()]
    forms = [Form(value, f"{name} {value}") for name, value in asked if value in FORMS]
    if len({form.name for form in forms}) > 1:
        raise ConfigError(f"{forms[0].option}: {forms[1].option} asks for another form; they must be of one")
    return forms[0] if forms else None


def is_wanted(folder: Path, form: Form | None) -> bool:
    """Is this folder read in Mistral's form? Where there is config.json, too, only if that is asked for."""
    there, other = (folder / PARAMS).is_file(), (folder / CONFIG).is_file()
    if form is None:
        return there and not other
    if form.name == "mistral" and not there:
        raise ConfigError(f"{form.option}: {folder} has no {PARAMS}, which models in Mistral's form have")
    if form.name == "hf" and there and not other:
        raise ConfigError(f"{form.option}: {folder} has no {CONFIG}, but {PARAMS} of Mistral's own form; auto reads it")
    return form.name == "mistral"


def hub_folder(folder: Path, form: Form | None) -> Path:
    """The folder with the files that those of transformers have; the same, where it is not read in Mistral's form."""
    if (folder / MARK).is_file() or not is_wanted(folder, form):
        return folder
    files = [file_state(folder / name) for name in (PARAMS, CONFIG) if (folder / name).is_file()]
    dtype = float_type(sorted(folder.glob(f"{OF_MISTRAL}*.safetensors"))) or "bfloat16"
    sources = {"version": VERSION, "of": str(folder), "files": files, "dtype": dtype}
    return linked_folder("mistral", [folder], sources, lambda: _make(folder, dtype))


def _make(folder: Path, dtype: str) -> dict[str, Any]:
    given = Values(folder / PARAMS, read_json(folder / PARAMS))
    beside = Values(folder / CONFIG, read_json(folder / CONFIG, missing_ok=True))
    config = make_config(given, dtype, beside)
    prefix = IN_TEXTS if "text_config" in config else ""
    mark = {"prefix": prefix, "turning": make_turning(given), "latent": is_latent(given)}
    return {CONFIG: config, MARK: mark, **make_processors(given)}
