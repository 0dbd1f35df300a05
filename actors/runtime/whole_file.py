"""A file is written whole or not at all: who dies meanwhile leaves the one that was there."""

from __future__ import annotations

from pathlib import Path


def write_whole(path: Path, content: bytes) -> None:
    """OSError says why that cannot be."""
    beside = path.with_suffix(".writing")
    try:
        beside.write_bytes(content)
        beside.rename(path)
    except OSError:  # a full folder keeps what it has room for
        beside.unlink(missing_ok=True)
        raise
