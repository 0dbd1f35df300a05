"""Which files of a folder are its weights: by their names, or by an index. Knows names of files; opens only indexes.

Of Mistral's own form they have names of their own, beside which the same may lie once more for transformers.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from ...options.config import ConfigError
from ..mistral.names import POSITIONS, is_of_mistral
from ..values import read_json

INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
PICKLED_INDEX = "pytorch_model.bin.index.json"
PICKLED = "pytorch_model.bin"
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.safetensors")
OF_MISTRAL = "consolidated"  # what names of files in Mistral's form begin with
NAMED_AT_MOST = 5  # tensors named in an error


class WeightNames(NamedTuple):
    """Of safetensors in one form."""

    single: str
    listing: str  # the index


HUB = WeightNames(SINGLE, INDEX)
MISTRAL = WeightNames(f"{OF_MISTRAL}.safetensors", f"{OF_MISTRAL}.safetensors.index.json")


def weight_names(folder: Path) -> WeightNames:
    """Those of the form that the folder is read in."""
    return MISTRAL if is_of_mistral(folder) else HUB


def index_of(folder: Path) -> Path | None:
    """The index that counts: none beside the one file, a pickled one only where there are no safetensors."""
    names = weight_names(folder)
    if (folder / names.single).exists():
        return None
    if (folder / names.listing).exists():
        return folder / names.listing
    pickled = names is HUB and (folder / PICKLED_INDEX).exists() and not parts_of(folder)
    return folder / PICKLED_INDEX if pickled else None


def weight_files(folder: Path) -> list[Path]:
    """The one file, or those that the index names; without one all parts of a file."""
    beside = [folder / POSITIONS] if is_of_mistral(folder) and (folder / POSITIONS).exists() else []
    return [*_stored_files(folder), *beside]


def _stored_files(folder: Path) -> list[Path]:
    index, own = index_of(folder), weight_names(folder)
    if index is None:
        for names in ([own.single], parts_of(folder), [PICKLED] if own is HUB else []):
            if names and (folder / names[0]).exists():
                return [folder / name for name in names]
        raise ConfigError(
            f"model: {folder} has neither {own.single} nor {own.listing}{_others(folder)}; "
            "--load-format dummy needs no weights"
        )
    names = index_files(index)
    missing = [name for name in names if not (folder / name).exists()]
    if missing:
        raise ConfigError(f"model: {folder} lacks {some(missing)}, which {index.name} names")
    return [folder / name for name in names]


def files_there(folder: Path) -> list[Path]:
    """The files of safetensors, as far as they are there yet."""
    index, own = index_of(folder), weight_names(folder)
    if index is not None and index.name == own.listing:
        names = index_files(index)
    else:
        names = [own.single] if (folder / own.single).exists() else parts_of(folder)
    return [folder / name for name in names if (folder / name).is_file()]


def parts_of(folder: Path) -> list[str]:
    """Files that are together one, by their names; none, where one is missing or several are meant."""
    own = weight_names(folder) is MISTRAL
    matches = [match for path in folder.glob("*.safetensors") if (match := PART.fullmatch(path.name))]
    found = sorted(match[0] for match in matches if match[1].startswith(OF_MISTRAL) == own)
    whole = {(match[1], int(match[3])) for name in found if (match := PART.fullmatch(name))}
    return found if len(whole) == 1 and len(found) == next(iter(whole))[1] else []


def index_files(path: Path) -> list[str]:
    """The files that an index names."""
    places = read_json(path).get("weight_map")
    if not isinstance(places, dict) or not places:
        raise ConfigError(f"model: {path} has no weight_map of names and files")
    for name, file in places.items():
        if not isinstance(file, str) or Path(file).name != file:
            raise ConfigError(f"model: {path} says weight_map.{name} = {file!r}; a file's name is needed")
    return sorted(set(places.values()))


def some(names: Iterable[str]) -> str:
    """The first names, and how many more there are."""
    known = list(names)
    more = len(known) - NAMED_AT_MOST
    return ", ".join(known[:NAMED_AT_MOST]) + (f" and {more} more" if more > 0 else "")


def _others(folder: Path) -> str:
    """Weights of another form, which are not read."""
    found = [path.name for form in ("*.gguf", "*.bin", "*.pth", "*.pt") for path in sorted(folder.glob(form))]
    own = sorted(path.name for path in folder.glob(f"{OF_MISTRAL}*.safetensors"))
    if not found and own and not is_of_mistral(folder):
        return f" (but {some(own)}, in Mistral's own form, for which --load-format mistral needs params.json)"
    return f" (but {some(found)}: only safetensors and {PICKLED} are read)" if found else ""
