"""Folders that are made of other files, kept in $XDG_CACHE_HOME (~/.cache) /actorserve, by kind.

A folder is made beside its place and renamed, so that it is whole or not there, whoever dies; of two who make the same
one is kept. Its name holds a hash of all that it is made of: what has changed is made anew.

Of each kind MOST are kept: whoever makes one more removes those that nobody has used for the longest time. Who uses one
holds a lock on its DONE for life, as do the processes that it forks; what is locked stays.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..options.config import ConfigError

DONE = "made-of.json"  # what a folder is made of; by it a whole one is known
MOST = 64  # folders of a kind
LINKS = 2  # the first led to what the folders' own links led to when they were made
_held: dict[Path, int] = {}  # files with locks, of folders that this process uses


def cached_folder(kind: str, name: str, sources: Any, make: Callable[[], Mapping[str, Any]]) -> Path:
    """The folder of what `make` gives by file names (bytes, a text, or what JSON can hold), made if there is none."""
    key = hashlib.sha256(json.dumps(sources).encode()).hexdigest()[:16]
    place = cache_folder() / kind / f"{name[:80]}-{key}"
    while not _hold(place):
        _write(place, {**make(), DONE: sources})
        _remove_oldest(place)
    return place


def linked_folder(
    kind: str, folders: Sequence[Path], sources: Mapping[str, Any], make: Callable[[], Mapping[str, Any]]
) -> Path:
    """The same with links to all other files that `folders` have now: of those with one name, to the first one's."""
    made = cached_folder(kind, folders[-1].name, {**sources, "links": LINKS}, make)
    _link_others(folders, made)
    return made


def _hold(place: Path) -> bool:
    """Use a folder, if it is there: nobody removes it then."""
    if place in _held and (place / DONE).is_file():
        return True
    try:
        file = os.open(place / DONE, os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:
        raise ConfigError(f"model: {place / DONE} cannot be read: {error.strerror}") from None
    fcntl.flock(file, fcntl.LOCK_SH)
    if not os.fstat(file).st_nlink:  # it was removed before the lock was had
        os.close(file)
        return False
    with contextlib.suppress(OSError):  # another user's folder: it only is older than it could be
        os.utime(file)
    if (before := _held.pop(place, None)) is not None:
        os.close(before)
    _held[place] = file
    return True


def _remove_oldest(made: Path) -> None:
    """Folders that are too many, and that nobody uses; and what a death has left of such."""
    for left in made.parent.glob(".old-*"):
        shutil.rmtree(left, ignore_errors=True)
    used = {}
    for path in made.parent.glob(f"[!.]*/{DONE}"):
        with contextlib.suppress(FileNotFoundError):  # another process removes, too
            used[path.parent] = path.stat().st_mtime_ns
    for place in sorted(used.keys() - {made}, key=used.__getitem__)[: max(0, len(used) - MOST)]:
        with contextlib.suppress(OSError):  # it is in use, gone, or another user's
            _remove(place)


def _remove(place: Path) -> None:
    """All of it, or nothing that anybody finds."""
    with (place / DONE).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        old = place.with_name(f".old-{place.name}-{os.getpid()}")
        place.rename(old)
        shutil.rmtree(old)


def file_state(path: Path) -> dict[str, Any]:
    """A file's place, and what tells another with the same name from it."""
    try:
        state = path.stat()
    except OSError as error:
        raise ConfigError(f"model: {path} cannot be read: {error.strerror}") from None
    return {"path": str(path), "inode": state.st_ino, "size": state.st_size, "changed": state.st_mtime_ns}


def cache_folder() -> Path:
    """Where this user's programs keep what they can make again."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "actorserve"


def _write(place: Path, texts: Mapping[str, Any]) -> None:
    """All files, or none."""
    made: Path | None = None
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        made = Path(tempfile.mkdtemp(dir=place.parent, prefix=".new-"))
        for name, values in texts.items():
            text = values if isinstance(values, (str, bytes)) else json.dumps(values, ensure_ascii=False)
            (made / name).parent.mkdir(exist_ok=True)
            (made / name).write_bytes(text if isinstance(text, bytes) else text.encode())
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


def _link_others(folders: Sequence[Path], made: Path) -> None:
    """Links lead to names in the folders, which may be links to other files by the next time."""
    for link in made.iterdir():
        if link.is_symlink() and not link.exists():
            link.unlink(missing_ok=True)
    for folder in folders:
        for file in folder.iterdir():
            with contextlib.suppress(FileExistsError):
                (made / file.name).symlink_to(file.absolute())


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """A JSON object with some fields otherwise; objects in it are merged, too."""
    inside = {
        name: merged(values[name], change)
        for name, change in changes.items()
        if isinstance(change, dict) and isinstance(values.get(name), dict)
    }
    return {**values, **changes, **inside}
