"""Folders that are made of other files, kept in $XDG_CACHE_HOME (~/.cache) /actorserve, by kind.

A folder is made beside its place and renamed, so that it is whole or not there, whoever dies; of two who make the same
one is kept. Its name holds a hash of all that it is made of: what has changed is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ..options.config import ConfigError

DONE = "made-of.json"  # what a folder is made of; by it a whole one is known


def cached_folder(kind: str, name: str, sources: Any, make: Callable[[], Mapping[str, Any]]) -> Path:
    """The folder of what `make` gives by file names (a text, or what JSON can hold), made where there is none yet."""
    key = hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]
    place = _root() / kind / f"{name[:80]}-{key}"
    if not (place / DONE).is_file():
        _write(place, {**make(), DONE: sources})
    return place


def file_state(path: Path) -> dict[str, Any]:
    """A file's place, and what tells another with the same name from it."""
    try:
        state = path.stat()
    except OSError as error:
        raise ConfigError(f"model: {path} cannot be read: {error.strerror}") from None
    return {"path": str(path), "inode": state.st_ino, "size": state.st_size, "changed": state.st_mtime_ns}


def _root() -> Path:
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "actorserve"


def _write(place: Path, texts: Mapping[str, Any]) -> None:
    """All files, or none."""
    made: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new-"))
        for name, values in texts.items():
            text = values if isinstance(values, str) else json.dumps(values, ensure_ascii=False)
            (made / name).write_text(text, encoding="utf-8")
        made.rename(place)
    except OSError as error:
        if made is not None:
            shutil.rmtree(made, ignore_errors=True)
        if (place / DONE).is_file():  # another was quicker
            return
        raise ConfigError(
            f"model: what is read of its files cannot be kept in {place.parent} ({error.strerror}); "
            "set XDG_CACHE_HOME to a folder that can be written"
        ) from None
