"""What files of weights say of their tensors, and whether that is what an architecture needs. No weight is read.

They are safetensors, or where there are none what PyTorch pickled (pickled.py). A file of safetensors is a length of 8
bytes, so much JSON (type, shape and place of each tensor), then the tensors without gaps.
Knows files; no torch, so that a model that cannot be served is told before anybody is started.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ...options.config import ConfigError
from ..architecture import Architecture
from ..formats.stored import BYTES, StoredSpec
from ..gguf.folder import SOURCES, Tensors, gguf_given, gguf_tensors
from ..gguf.header import BY_NAME
from ..gguf.joined import joined_names
from ..gguf.names import hub_tensors, scale_names
from ..layers import HEAD, SCORES
from ..mistral.names import hub_name, read_mark
from ..values import read_json
from ..vision.texts import text_name
from .pickled import read_pickled
from .places import index_files, index_of, parts_of, some, weight_files, weight_names

POINTER = b"version "  # what begins so is no length
LONGEST_HEADER = 100_000_000  # bytes, as the format has it
PREFIX = "model."  # of what belongs to the bare model, in a checkpoint that is more than that
HEADS = (f"{SCORES}.", "v_head.", f"{HEAD}.")

FLOATS = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}  # as config.json names them

Homes = dict[str, tuple[Path, str]]


class StoredTensor(NamedTuple):
    """A tensor in a file."""

    file: Path
    dtype: str  # in safetensors' words
    shape: tuple[int, ...]
    size: int  # bytes
    name: str = ""  # in the file, where the model has another

    def at(self, name: str) -> StoredTensor:
        """The same for one who has yet another name for `name`."""
        return self if self.name else self._replace(name=name)

    def home(self, name: str) -> tuple[Path, str]:
        """The file, and what is called `name` there."""
        return self.file, self.name or name


def stored_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Of all tensors by name."""
    return {name: tensor.shape for name, tensor in read_weights(folder).items()}


def read_weights(folder: Path) -> dict[str, StoredTensor]:
    """All tensors of the folder's files by name. ConfigError if a file is missing, broken or cut off."""
    if (found := gguf_tensors(folder)) is not None:
        given = {
            name: StoredTensor(folder / SOURCES, "F32", shape, 4) for name, (shape, _) in gguf_given(folder).items()
        }
        return _of_gguf(*found) | given
    tensors = read_files(weight_files(folder))
    if (mark := read_mark(folder)) is None:
        return tensors
    return {hub_name(name, mark): tensor._replace(name=name) for name, tensor in tensors.items()}


def tensor_names(folder: Path) -> set[str]:
    """The names of all tensors in safetensors, by the index if there is one; none where nothing is there yet."""
    index, own = index_of(folder), weight_names(folder)
    if index is not None and index.name == own.listing:
        return _hub_names(folder, read_json(index).get("weight_map") or ())
    names = [own.single] if (folder / own.single).exists() else parts_of(folder)
    return _hub_names(folder, read_files(folder / name for name in names))


def _hub_names(folder: Path, names: Iterable[str]) -> set[str]:
    """Of those of tensors in the folder's files."""
    mark = read_mark(folder)
    return set(names) if mark is None else {hub_name(name, mark) for name in names}


def read_files(paths: Iterable[Path]) -> dict[str, StoredTensor]:
    """The same of some files."""
    return {name: tensor for path in paths for name, tensor in _read_header(path)}


def float_type(paths: Iterable[Path]) -> str | None:
    """The type of most floats in some files, as config.json names it; None: there are none. Scales of other numbers do
    not count, which may be of another type than what is computed in.
    """
    counts: Counter[str] = Counter()
    for name, tensor in read_files(paths).items():
        if tensor.dtype in FLOATS and "scale" not in name.rpartition(".")[2]:
            counts[FLOATS[tensor.dtype]] += math.prod(tensor.shape)
    return counts.most_common(1)[0][0] if counts else None


def is_pickled(path: Path) -> bool:
    """Is it no file of safetensors?"""
    return path.suffix in (".bin", ".pt")


def _of_gguf(architecture: str, tensors: Tensors) -> dict[str, StoredTensor]:
    """The same of GGUF files, by the names that tensors have at the hub."""
    names = {name for _, name, _ in tensors}
    scales = scale_names(architecture, {name: tensor.type.name for _, name, tensor in tensors})
    found = {
        hub: StoredTensor(path, part.type.name, part.shape, part.size)
        for path, name, tensor in tensors
        if name not in scales
        for hub, part in hub_tensors(architecture, name, tensor, names)
    }
    for whole, parts, kind in [*joined_names(architecture, found)]:
        first, second = (found[part] for part in parts)
        if (shape := kind.shape(first.shape, second.shape)) is not None:
            found[whole] = first._replace(shape=shape, size=first.size + second.size)
            found = {name: tensor for name, tensor in found.items() if name not in parts}
    return found


def check_weights(folder: Path, shape: Architecture) -> dict[str, StoredTensor]:
    """The same, all of them there with the shapes and types that they should have, and no others."""
    found = read_weights(folder)
    if shape.text_part:
        named = ((text_name(name), tensor.at(name)) for name, tensor in found.items())
        found = {name: tensor for name, tensor in named if name is not None}
    if shape.names:
        found = {shape.own_name(name): tensor.at(name) for name, tensor in found.items()}
    check_tensors(folder, shape, found)
    return found


def find_hidden_weights(folder: Path, shape: Architecture) -> tuple[Homes, Homes]:
    """(those of a model that makes no logits, by their full names; those of its heads): where each lies, and by which
    name. It may have been stored as the bare model. ConfigError if they do not fit.
    """
    if shape.text_part:
        each = ((text_name(name), name, one) for name, one in read_weights(folder).items())
        parts = {own: (one, name) for own, name, one in each if own is not None and not own.startswith(HEAD)}
        check_tensors(folder, shape, {own: one for own, (one, _) in parts.items()})
        return {own: one.home(name) for own, (one, name) in parts.items()}, {}
    found = read_weights(folder)
    bare = not any(name.startswith(PREFIX) for name in found)
    owned = {name: shape.own_name(name) for name in found}
    heads: Homes = {own: found[name].home(name) for name, own in owned.items() if own.startswith(HEADS)}
    rest = {name: own for name, own in owned.items() if own not in heads}
    named = {shape.own_name(f"{PREFIX}{name}") if bare else own: name for name, own in rest.items()}
    check_tensors(folder, shape, {full: found[name] for full, name in named.items()})
    return {full: found[name].home(name) for full, name in named.items()}, heads


def check_tensors(folder: Path, shape: Architecture, found: dict[str, StoredTensor]) -> None:
    """ConfigError if these, of the folder's files, are not those of the architecture."""
    specs = shape.stored_specs(found)
    _compare(folder, shape, found, specs)
    in_gguf = (folder / SOURCES).is_file()
    for name, spec in specs.items():
        types = tuple(BY_NAME) if in_gguf else spec.types
        if name in found and found[name].dtype not in types:
            raise ConfigError(f"model: {name} is stored as {found[name].dtype}; supported are {', '.join(types)}")


def check_index(folder: Path, shape: Architecture) -> None:
    """Where there is an index, it names each tensor that is needed: what it lacks, no file need be had for."""
    if (path := index_of(folder)) is not None:
        index_files(path)
        there = _hub_names(folder, read_json(path)["weight_map"])
        if shape.text_part:
            there = {own for name in there if (own := text_name(name)) is not None}
        there = set(map(shape.own_name, there))
        if missing := sorted(_needed(shape.stored_specs(there)) - there):
            raise ConfigError(f"model: {path} does not fit config.json: it lacks {some(missing)}")


def _read_header(path: Path) -> Iterator[tuple[str, StoredTensor]]:
    """What a file says of its tensors; its length is that of all of them together."""
    if is_pickled(path):
        return ((name, StoredTensor(path, *tensor)) for name, tensor in read_pickled(path).items())
    try:
        if not path.is_file():  # to open a pipe would wait for whoever writes
            raise ConfigError(f"model: {path} is no file")
        whole = path.stat().st_size
        with path.open("rb") as file:
            begin = file.read(8)
            if begin == POINTER:
                raise ConfigError(
                    f"model: {path} is a pointer of Git LFS: `git lfs pull` in its folder brings the file"
                )
            length = int.from_bytes(begin, "little")
            if length > min(whole - 8, LONGEST_HEADER):
                raise ValueError("it ends inside its header")
            header = json.loads(file.read(length))
        tensors, end = _tensors(path, header), 0
        for name, (first, last), _ in tensors:
            if first != end or last < first:
                raise ValueError(f"{name} does not lie where the tensor before it ends")
            end = last
        if 8 + length + end != whole:
            raise ValueError(f"it has {whole:,} bytes in place of {8 + length + end:,}")
    except OSError as error:
        raise ConfigError(f"model: {path} cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError) as error:
        reason = "its header is nested too deeply" if isinstance(error, RecursionError) else error
        raise ConfigError(f"model: {path} is broken or cut off: {reason}") from None
    return ((name, stored) for name, _, stored in tensors)


def _tensors(path: Path, header: Any) -> list[tuple[str, tuple[int, int], StoredTensor]]:
    """(name, place, what it is) of each, in the order of their places. ValueError says what is wrong."""
    if not isinstance(header, dict):
        raise ValueError("its header is no JSON object")
    found = []
    for name, about in header.items():
        if name == "__metadata__":
            continue
        try:
            dtype, shape, (first, last) = about["dtype"], tuple(about["shape"]), about["data_offsets"]
            if not all(isinstance(number, int) and number >= 0 for number in (*shape, first, last)):
                raise ValueError
        except (TypeError, KeyError, ValueError):
            raise ValueError(f"its header does not say type, shape and place of {name}") from None
        if dtype in BYTES and last - first != math.prod(shape) * BYTES[dtype]:
            raise ValueError(f"{name} has {last - first:,} bytes, which is not its shape {list(shape)} in {dtype}")
        found.append((name, (first, last), StoredTensor(path, str(dtype), shape, last - first)))
    return sorted(found, key=lambda tensor: tensor[1])


def _needed(specs: dict[str, StoredSpec]) -> set[str]:
    return {name for name, spec in specs.items() if not spec.optional}


def _compare(folder: Path, shape: Architecture, found: dict[str, StoredTensor], wanted: dict[str, StoredSpec]) -> None:
    """Every tensor of the architecture is there with its shape, and no other."""
    needless = {name for name in found if name.endswith("rotary_emb.inv_freq")}  # of old checkpoints
    needless |= {f"{HEAD}.weight"} if shape.tied else set()
    unused = shape.unused()
    needless |= {name for name in found if name.startswith(unused)}
    if shape.stored is not None and shape.stored.needless is not None:
        needless |= {name for name in found if shape.stored.needless.fullmatch(name)}
    problems = []
    if missing := sorted(_needed(wanted) - found.keys()):
        tied = missing == [f"{HEAD}.weight"]
        hint = """ (if embeddings make logits, --hf-overrides '{"tie_word_embeddings": true}')""" if tied else ""
        problems.append(f"lacks {some(missing)}{hint}")
    if unknown := sorted(found.keys() - wanted.keys() - needless):
        problems.append(f"has {some(unknown)}, for which the model has no use")
    wrong = {
        name: spec.shape
        for name, spec in wanted.items()
        if spec.shape is not None and name in found and found[name].shape not in (spec.shape, *spec.also)
    }
    if wrong:
        told = (f"{name} {list(found[name].shape)} in place of {list(sizes)}" for name, sizes in wrong.items())
        problems.append(f"has the shape of {some(told)}")
    if problems:
        raise ConfigError(f"model: the weights in {folder} do not fit its config.json: it {'; it '.join(problems)}")
