"""The files that a batch ends with: its lines become files of its owner.

The lines are moved into output/ or errors/ beside them, as content of a file, then that folder to its place; its id
follows from the batch's. A death leaves one of three: the lines at their old place, in the folder, or where they
belong; whoever comes next finds which, and does the rest.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

import msgspec

from ..files.batches import BatchRequest
from ..files.folder import CONTENT, META, Folder, publish, write_synced
from ..files.store import StoredFile

PURPOSE = "batch_output"
PIECE = 1 << 20  # bytes


def publish_lines(folder: Folder, request: BatchRequest, name: str) -> str | None:
    """The id of the file that these lines are now; None if there are none."""
    kind = Path(name).stem
    digest = hashlib.sha256(f"{request.id}\0{kind}".encode()).hexdigest()
    file_id = f"file-{digest[:24]}"
    place, lines = folder.files / file_id, folder.batches / request.id / name
    made = lines.with_name(kind)
    if place.exists():
        return file_id
    if not (made / CONTENT).exists():
        if not lines.exists():
            return None
        if not lines.stat().st_size:
            lines.unlink()
            return None
        made.mkdir(0o700, exist_ok=True)
        stored = _stored(file_id, request, kind, lines)
        write_synced(made / META, msgspec.json.encode(stored))
        os.rename(lines, made / CONTENT)
    publish(made, place)
    return file_id


def _stored(file_id: str, request: BatchRequest, kind: str, lines: Path) -> StoredFile:
    now = time.time_ns()
    created = now // 10**9
    return StoredFile(
        id=file_id,
        size=lines.stat().st_size,
        created_at=created,
        filename=f"{request.id}_{kind}.jsonl",
        purpose=PURPOSE,
        owner=request.owner,
        order=now,
        expires_at=None if request.output_expires_s is None else created + request.output_expires_s,
        num_lines=_count(lines),
    )


def _count(lines: Path) -> int:
    with lines.open("rb") as file:
        return sum(piece.count(b"\n") for piece in iter(lambda: file.read(PIECE), b""))
