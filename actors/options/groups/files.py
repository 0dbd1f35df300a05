"""Files that clients upload, and batches of requests that are in them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from ..choices import Positive
from .tool_calls import ToolOptions


class FileOptions(ToolOptions, frozen=True, kw_only=True):
    """What the API of files and batches keeps, and how much of the server batches take."""

    files_dir: Annotated[
        str | None,
        Meta(
            description="the folder for files of /v1/files and batches of /v1/batches and /v1/messages/batches, which "
            "are not there without it; several servers may have one"
        ),
    ] = None
    files_limit: Annotated[
        int, Meta(ge=1 << 10, description="of all files in that folder, results of batches among them")
    ] = 16 << 30
    max_batch_lines: Annotated[
        Positive | None,
        Meta(description="lines of batches that are asked at once; half of --max-num-seqs of all engines if left out"),
    ] = None
    batch_retention_days: Annotated[
        int,
        Meta(ge=0, le=36500, description="after which a batch that has ended is no longer there; 0: it stays for good"),
    ] = 30
