"""A GGUF file as a model's folder, as all others know one: config.json, tokenizer.json and so on, of its header.

Such folders are kept (cached.py), named by the file, its size and the time of its last change; SOURCES in them says
where the weights are, which stay in the file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...options.config import ConfigError
from ..cached import cached_folder, file_state
from ..values import Values, read_json
from .architectures import Fields
from .config import given_tensors, make_config, make_generation_config, sizes
from .encoders.config import pooling_files
from .header import BY_NAME, GgufHeader, GgufTensor, read_header
from .tokenizer import make_tokenizer, without_missing_tokens

SOURCES = "gguf.json"
TYPE = "general.type"
VERSION = 11  # of what is made of a header
SEES = "mmproj"  # in names of files by which a model sees
MATRIX = "imatrix"  # what names of files by which one was quantised begin or end with; models are named after it, too
QUANTISED = re.compile(r"(?:^|[-_.])i?q\d")  # in names of such models, as Q4_K_M
DRAFTS = ("mtp-", "eagle3-", "dflash-", "dspark-")  # what names of files of drafting layers begin with
PARTIAL = ("-lora", "-vocab")  # what those of adapters and of vocabularies alone end with, as converters name them
Tensors = list[tuple[Path, str, GgufTensor]]
PART = re.compile(r"(.+)-(\d{5})-of-(\d{5})\.gguf")


def gguf_in(folder: Path) -> Path | None:
    """The one GGUF model of a folder that has no config.json: a file, or the first of several parts."""
    if (folder / "config.json").exists():
        return None
    files = [path for path in sorted(folder.glob("*.gguf")) if may_be_model(path.name)]
    firsts = [path for path in files if (match := PART.fullmatch(path.name)) is None or int(match[2]) == 1]
    if named := [path for path in firsts if is_model(path.name)]:
        firsts = named if len(named) == 1 else [path for path in named if _says_model(path)] or named
    else:
        firsts = [path for path in firsts if _says_model(path)]
    if len(firsts) > 1:
        names = ", ".join(path.name for path in firsts[:5]) + (" …" if len(firsts) > 5 else "")
        raise ConfigError(f"model: {folder} has several GGUF models ({names}); name the file of one")
    return firsts[0] if firsts else None


def is_model(name: str) -> bool:
    """Is this the name of a file of a whole model, and not of what belongs to one?"""
    stem = name.lower().removesuffix(".gguf")
    matrix = (stem.startswith(MATRIX) or stem.endswith(MATRIX)) and not QUANTISED.search(stem)
    return may_be_model(name) and not matrix and not stem.endswith(PARTIAL)


def may_be_model(name: str) -> bool:
    """Where none is named as a model is: merged adapters are named as adapters are."""
    return SEES not in (stem := name.lower()) and not stem.startswith(DRAFTS)


def _says_model(file: Path) -> bool:
    """Not one of an adapter or of an importance matrix, whatever its name is. A broken file may be a model."""
    try:
        return read_header(file).fields.get(TYPE) in (None, "model")
    except ConfigError:
        return True


def model_folder(file: Path, keep_quantised: bool, with_tokenizer: bool) -> Path:
    """The folder of a GGUF file's model; without `with_tokenizer` another tokenizer is taken than its own."""
    files = _parts(file.absolute())
    sources = {"files": [file_state(path) for path in files]}

    def make() -> dict[str, Any]:
        headers = [read_header(path) for path in files]
        _check_parts(headers)
        first = without_missing_tokens(headers[0])
        whole = first._replace(tensors={name: tensor for part in headers for name, tensor in part.tensors.items()})
        texts = {
            "config.json": make_config(whole, keep_quantised),
            "generation_config.json": make_generation_config(whole),
            SOURCES: sources
            | {"given": given_tensors(whole)}
            | {"architecture": Fields(whole).architecture, "sizes": sizes(whole), "tensors": list(_tensors(headers))},
        }
        texts |= pooling_files(Fields(whole))
        if with_tokenizer:
            texts["tokenizer.json"], texts["tokenizer_config.json"] = make_tokenizer(whole)
        return texts

    return cached_folder("gguf", file.stem, [VERSION, sources, keep_quantised, with_tokenizer], make)


def check_header(header: GgufHeader, with_tokenizer: bool) -> None:
    """What can be said of a model before its tensors are there; of one in parts, whose tensors are in others, less."""
    if (Values(header.file, header.fields).whole("split.count", 0) or 1) > 1:
        Fields(header)
        return
    header = without_missing_tokens(header)
    make_config(header, keep_quantised=False)
    if with_tokenizer:
        make_tokenizer(header)


def gguf_tensors(folder: Path) -> tuple[str, Tensors] | None:
    """(the architecture, each tensor with its file and name) of a folder made here; None if it is another."""
    if not (folder / SOURCES).is_file():
        return None
    known = read_json(folder / SOURCES)
    for about in known["files"]:
        if file_state(Path(about["path"])) != about:
            raise ConfigError(f"model: {about['path']} has changed since it was first read; start the server again")
    files = [Path(about["path"]) for about in known["files"]]
    return known["architecture"], [
        (files[file], name, GgufTensor(BY_NAME[kind], tuple(shape), offset, size))
        for file, name, kind, shape, offset, size in known["tensors"]
    ]


def is_gguf(folder: str) -> bool:
    """Whether a folder was made here."""
    return (Path(folder) / SOURCES).is_file()


def gguf_sizes(folder: Path) -> dict[str, int]:
    """Of attention: heads, kv_heads, head_dim; of linear attention its own."""
    found: dict[str, int] = read_json(folder / SOURCES)["sizes"]
    return found


def gguf_given(folder: Path) -> dict[str, tuple[tuple[int, ...], float]]:
    """Tensors of one number, which stands in a field: (shape, number), by their names at the hub."""
    known = read_json(folder / SOURCES)["given"]
    return {name: (tuple(shape), number) for name, (shape, number) in known.items()}


def _tensors(headers: list[GgufHeader]) -> Iterator[list[Any]]:
    """What `gguf_tensors` reads: so a worker that starts need not read all words of a vocabulary."""
    for number, header in enumerate(headers):
        for name, tensor in header.tensors.items():
            yield [number, name, tensor.type.name, tensor.shape, tensor.offset, tensor.size]


def _parts(file: Path) -> list[Path]:
    """All parts of a model of which one is named, in order."""
    match = PART.fullmatch(file.name)
    if match is None:
        return [file]
    count = int(match[3])
    parts = {}
    for path in file.parent.glob("*.gguf"):
        own = PART.fullmatch(path.name)
        if own is not None and own.group(1, 3) == match.group(1, 3):
            parts[int(own[2])] = path
    missing = [number for number in range(1, count + 1) if number not in parts]
    if missing or not count:
        name = f"{match[1]}-{missing[0] if missing else 0:05}-of-{match[3]}.gguf"
        raise ConfigError(f"model: {file.parent} lacks {name}; {len(missing)} of {count} parts are missing")
    return [parts[number] for number in range(1, count + 1)]


def _check_parts(headers: list[GgufHeader]) -> None:
    """They are what they say, and all is there."""
    whole, count = headers[0], sum(len(header.tensors) for header in headers)
    if len({name for header in headers for name in header.tensors}) != count:
        raise ConfigError(f"model: {whole.file} and its other parts have a tensor twice")
    fields = Values(whole.file, whole.fields)
    parts, tensors = fields.whole("split.count", 0), fields.whole("split.tensors.count", 0)
    if (parts or 1) != len(headers):
        raise fields.wrong("split.count", f"{len(headers)}, as the file's name has it,")
    if tensors is not None and len(headers) > 1 and tensors != count:
        raise fields.wrong("split.tensors.count", f"{count}, which is what all parts have,")
    for number, header in enumerate(headers):
        own = Values(header.file, header.fields)
        if (own.whole("split.no", 0) or 0) != number:
            raise own.wrong("split.no", f"{number}, as the file's name has it,")
