"""What clients send to /v1/files and /v1/batches."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

import msgspec
from msgspec import Meta

from ..responses.schemas import InputItemsQuery

Purpose = Literal["assistants", "audio", "batch", "evals", "fine-tune", "ocr", "user_data", "vision"]
PURPOSES: tuple[str, ...] = get_args(Purpose)
UNSAID: Purpose = "user_data"  # Mistral's clients need not name one
Seconds = Annotated[int, Meta(ge=3600, le=2592000)]


class FileExpiry(msgspec.Struct, forbid_unknown_fields=True):
    """From when on, and for how long."""

    seconds: Seconds
    anchor: Literal["created_at"] = "created_at"


class FileForm(msgspec.Struct):
    """POST /v1/files: the fields of its form. Those of expires_after are expires_after[anchor] and [seconds]."""

    file: str
    purpose: Purpose = UNSAID
    expires_after: FileExpiry | None = None


class FilesQuery(InputItemsQuery):
    """Which files are listed."""

    limit: Annotated[int, Meta(ge=1, le=10_000)] = 10_000
    purpose: str | None = None
    page: Annotated[int, Meta(ge=0)] | None = None  # as Mistral's clients have it, in place of after
    page_size: Annotated[int, Meta(ge=1, le=10_000)] = 100
    sample_type: list[str] = []
    source: list[str] = []
    search: str | None = None  # a part of its name


class BatchRequestBody(msgspec.Struct):
    """POST /v1/batches."""

    input_file_id: str
    endpoint: str
    completion_window: Annotated[str, Meta(pattern="^[1-9][0-9]{0,3}h$")] = "24h"
    metadata: dict[str, str] | None = None
    output_expires_after: FileExpiry | None = None

    @property
    def hours(self) -> int:
        """After which what is not answered will not be."""
        return int(self.completion_window[:-1])
