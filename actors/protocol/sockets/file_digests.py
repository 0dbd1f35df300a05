"""Whether files are the same on two machines, told in few bytes and no time."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...model.weights.marks import model_files

SAMPLED, SAMPLES = 64 << 10, 64  # bytes, and places of a file that are read, beside its first bytes


def weights_digest(folder: str) -> str:
    """Of the files of a folder that weights are loaded from. OSError if they cannot be read."""
    return digest_of(
        [path for path in model_files(Path(folder)) if path.name != "config.json" and path.suffix != ".py"]
    )


def adapter_digest(folder: Path) -> str:
    """Of an adapter's files. OSError if they cannot be read."""
    (folder / "adapter_config.json").stat()
    return digest_of(sorted(path for path in folder.iterdir() if path.is_file() and path.name.startswith("adapter_")))


def digest_of(files: list[Path]) -> str:
    """Of names, sizes and contents; of long files of the beginning, where tensors have their names and places, and of
    samples everywhere: other weights differ in all of them, and all is read in no time.
    """
    found = hashlib.sha256()
    for path in files:
        size = path.stat().st_size
        found.update(repr((path.name, size)).encode())
        with path.open("rb") as file:
            found.update(file.read(SAMPLED))
            for place in range(SAMPLED, size, max(SAMPLED, size // SAMPLES)):
                file.seek(place)
                found.update(file.read(SAMPLED))
    return found.hexdigest()[:16]
