"""Which files make a model, and by what it is seen that they are the same as before, without reading them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ..gguf.folder import SOURCES
from ..values import read_json

FILES = (".safetensors", ".bin", ".pt", ".gguf", ".py")
CONFIGS = (  # also of how pictures, films and sounds become numbers
    "config.json",
    "preprocessor_config.json",
    "video_preprocessor_config.json",
    "processor_config.json",
)


def model_files(folder: Path) -> list[Path]:
    """All that give the numbers that it computes; of a GGUF file's folder that file, and all its parts, too."""
    found = [path for path in folder.iterdir() if path.is_file() and (path.suffix in FILES or path.name in CONFIGS)]
    if (folder / SOURCES).is_file():
        found += [Path(about["path"]) for about in read_json(folder / SOURCES)["files"]]
    return sorted(found)


def file_marks(path: Path) -> str:
    """Of the file that this may be a link to; another machine has others for the same contents."""
    target = path.resolve()
    stat = target.stat()
    return repr((str(target), stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns))


def folder_marks(folder: str) -> bytes:
    """Of all that make the model in this folder, as they are now."""
    said = repr([(path.name, file_marks(path)) for path in model_files(Path(folder))])
    return hashlib.blake2b(said.encode(), digest_size=16).digest()
