"""--models-dir and --models-preset: llama-server's ways to say which models there are, as MODEL and those of --also.

Of a folder each GGUF file is a model, and each folder with one, whatever parts it has, or with a config.json. A preset
is an .ini file: a section is a model, by a name of the folder, or one whose options say where it is; [*] is for all. Of
what is said twice the command line's goes first, then that of the section. Models are loaded once they are asked for.
"""

from __future__ import annotations

import configparser
import re
from collections.abc import Callable, Mapping
from pathlib import Path

import msgspec

from ..also import OWN, read_also, written
from ..config import ConfigError
from ..fields import flag, option_fields
from ..names.environment import llama_option

FOLDER, PRESET = "models_dir", "models_preset"
EVERY = "*"  # the section that is for all
NONE = "\0"  # no section: what stands before the first is the file's own
FILE_KEYS = ("version",)
ENDS = (
    "stop-timeout",
    "dedup-cache-models",
)  # of presets, and needless: what has begun ends, and nothing is listed twice
SHARD = re.compile(r"-(\d{5})-of-\d{5}\.gguf$")
LINE = re.compile(r"\[line (\d+)\]")
PROJECTOR = "mmproj"  # how files begin that belong to another
MOST_LOADED = 4  # where nobody says it, as there
NOT_TAKEN = ("served_model_name", "revision")  # of the command line, which MODEL alone has

Values = dict[str, object]


def with_models(values: Mapping[str, object], warn: Callable[[str], None]) -> Values:
    """The options, with the models of the folder and of the preset; without either as they are."""
    given = dict(values)
    if not (given.get(FOLDER) or given.get(PRESET)):
        return given
    found = models_of(Path(str(given[FOLDER])).expanduser(), warn) if given.get(FOLDER) else {}
    sections = _read(Path(str(given[PRESET])).expanduser(), warn) if given.get(PRESET) else {}
    every = sections.pop(EVERY, {})
    own = {name: value for name, value in given.items() if name in OWN and name not in NOT_TAKEN}
    texts = []
    for name in [*found, *(name for name in sections if name not in found)]:
        options: Values = {"load_on_startup": False} | every | sections.get(name, {}) | own
        model = options.pop("model", None) or found.get(name) or (name if "/" in name else None)
        if model is None:
            raise ConfigError(f"{flag(PRESET)}: [{name}] is no model of {flag(FOLDER)}; model = FILE says where it is")
        aliases = options.pop("served_model_name", None)
        options["served_model_name"] = [name, *(one for one in (aliases if isinstance(aliases, list) else []))]
        texts.append(msgspec.json.encode({"model": str(model)} | written(options)).decode())
    return _among(given, texts)


def names_of(folder: str | None, preset: str | None) -> list[str]:
    """Of all models that there are now."""
    found = models_of(Path(folder).expanduser(), _pass_over) if folder else {}
    sections = _read(Path(preset).expanduser(), _pass_over) if preset else {}
    return [*found, *(name for name in sections if name not in found and name != EVERY)]


def _pass_over(text: str) -> None:
    """What was warned of when the server started."""


def _among(given: Values, texts: list[str]) -> Values:
    """The first is MODEL where no other is named."""
    given.setdefault("models_max", MOST_LOADED)
    also = given.get("also")
    further = [*(also if isinstance(also, list) else []), *texts]
    if given.get("model") is None:
        if not texts:
            raise ConfigError(
                f"{flag(FOLDER)}: there is no model in it: a GGUF file, or a folder with one or with a config.json"
            )
        if given.get("served_model_name"):
            raise ConfigError(
                f"--served-model-name: it names MODEL; with {flag(FOLDER)} models have names of their own"
            )
        first = texts[0]
        further.remove(first)
        model, own = read_also(first)
        given |= own | {"model": model}
    return given | {"also": further, "models_found": len(texts)}


def models_of(folder: Path, warn: Callable[[str], None]) -> dict[str, str]:
    """The models of a folder, by their names."""
    try:
        entries = sorted(folder.iterdir())
    except OSError as error:
        raise ConfigError(f"{flag(FOLDER)}: {folder} cannot be read: {error.strerror}") from None
    found: dict[str, str] = {}
    for entry in entries:
        try:
            name, path = _of_entry(entry, warn)
        except OSError as error:
            warn(f"{flag(FOLDER)}: {entry} is passed over: it cannot be read: {error.strerror}")
            continue
        if path is not None and (other := found.setdefault(name, str(path))) != str(path):
            warn(f"{flag(FOLDER)}: {path} is passed over: {other} has its name, {name}")
    return found


def _of_entry(entry: Path, warn: Callable[[str], None]) -> tuple[str, Path | None]:
    """(its name, the model if it is one)."""
    if entry.is_dir():
        return entry.name, _of_folder(entry, warn)
    if entry.suffix == ".gguf" and _is_first(entry) and not entry.name.startswith(PROJECTOR):
        return SHARD.sub("", entry.name).removesuffix(".gguf"), entry
    return entry.name, None


def _of_folder(folder: Path, warn: Callable[[str], None]) -> Path | None:
    if (folder / "config.json").is_file():
        return folder
    files = [one for one in sorted(folder.glob("*.gguf")) if not one.name.startswith(PROJECTOR) and _is_first(one)]
    if len(files) > 1:
        warn(f"{flag(FOLDER)}: {folder} has several models, and is passed over: a folder has one, in parts or not")
    return files[0] if len(files) == 1 else None


def _is_first(file: Path) -> bool:
    """Is it whole, or the first of its parts?"""
    part = SHARD.search(file.name)
    return part is None or int(part[1]) == 1


def _read(path: Path, warn: Callable[[str], None]) -> dict[str, Values]:
    """The options of each section, by field name."""
    parser = configparser.ConfigParser(
        default_section=NONE, delimiters=("=",), comment_prefixes=(";", "#"), interpolation=None
    )
    parser.optionxform = str  # type: ignore[method-assign, assignment]  # as they are written
    try:
        parser.read_string(f"[{NONE}]\n{path.read_text(encoding='utf-8-sig')}", str(path))
    except OSError as error:
        raise ConfigError(f"{flag(PRESET)}: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{flag(PRESET)}: {path} is not UTF-8") from None
    except configparser.Error as error:
        raise ConfigError(f"{flag(PRESET)}: {path}: {_message(error)}") from None
    whole = parser.defaults()
    if strange := [key for key in whole if key not in FILE_KEYS]:
        raise ConfigError(f"{flag(PRESET)}: {path}: {strange[0]} stands before the first section; [{EVERY}] is for all")
    return {name: _options(name, parser[name], whole, path, warn) for name in parser.sections()}


def _message(error: configparser.Error) -> str:
    """In a line, with the numbers of the file's own lines: one stands before them here."""
    return LINE.sub(lambda found: f"[line {int(found[1]) - 1}]", " ".join(error.message.split()))


def _options(
    section: str, given: Mapping[str, str], whole: Mapping[str, str], path: Path, warn: Callable[[str], None]
) -> Values:
    fields = option_fields()
    values: Values = {}
    for key, text in given.items():
        where = f"{flag(PRESET)}: {path}: [{section}] {key}"
        if key in whole:
            continue
        if key in ENDS:
            warn(f"{where}: not needed: what has begun ends before a model is unloaded")
            continue
        found = llama_option(key, where, text, warn)
        if found is None:
            raise ConfigError(f"{where}: there is no such option")
        if strange := [name for name in found if name not in (*OWN, "model")]:
            raise ConfigError(f"{where}: {flag(strange[0])}: an option of the server, not of a model")
        values |= found
    from ..sources import value_of  # which knows this module's callers

    return {
        name: value if name == "model" else value_of(f"[{section}] {name}", fields[name], value)
        for name, value in values.items()
    }
