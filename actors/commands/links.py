"""What a path needs beside itself, for who sees no more of a machine than it is told of: the other parts of a GGUF
model, and what links in a folder lead to, as those of the hub's cache do, whose snapshots are links to ../../blobs.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from ..model.gguf.folder import PART

DEEPEST = 3  # folders within a folder: of a model, or of a folder of adapters
MOST_HOPS = 40  # as of Linux
BLOBS = "blobs"  # in the hub's cache, the folder of all files of one model


def what_it_needs(path: Path) -> list[Path]:
    """The path first. What is not there, or cannot be looked at, is told by whoever reads it."""
    found = [path, *hops(path)]
    for place in found:
        new = _aims(place) if place.is_dir() else _parts(place)
        found += [one for one in new if one not in found]
    return found


def folder_for_elsewhere(path: Path) -> Path:
    """The path; or, of a folder that is a link and has links that mean another place from there, where it lies."""
    lies = path.resolve()
    if lies == path or not path.is_dir():
        return path
    return path if {*_aims(path)} >= {*_aims(lies)} else lies


def hops(path: Path) -> list[Path]:
    """What a path is called on the way through its links; the last is where it lies."""
    found: list[Path] = []
    while len(found) < MOST_HOPS:
        link = next((one for one in (*reversed(path.parents), path) if one.is_symlink()), None)
        if link is None:
            break
        path = Path(os.path.normpath(link.parent / link.readlink())) / path.relative_to(link)
        found.append(path)
    return found


def _aims(folder: Path) -> list[Path]:
    """What links in a folder lead to outside of it. Links are read as they are where the folder has this very path."""
    found: dict[Path, None] = {}
    for link in _links(folder, DEEPEST):
        aim = Path(os.path.normpath(link.parent / link.readlink()))
        if not aim.is_relative_to(folder) and aim.exists():
            found[aim.parent if aim.parent.name == BLOBS else aim] = None
    return list(found)


def _links(folder: Path, depth: int) -> Iterator[Path]:
    try:
        entries = sorted(folder.iterdir())
    except OSError:
        return
    for entry in entries:
        if entry.is_symlink():
            yield entry
        elif depth and entry.is_dir():
            yield from _links(entry, depth - 1)


def _parts(file: Path) -> list[Path]:
    """All of a GGUF model of which one is named."""
    named = PART.fullmatch(file.name)
    if named is None:
        return []
    others = ((one, PART.fullmatch(one.name)) for one in sorted(file.parent.iterdir()))
    return [one for one, match in others if match is not None and match.group(1, 3) == named.group(1, 3)]
