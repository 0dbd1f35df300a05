"""Errors as clients of Text Generation Inference read them."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError
from ..generation.adapter import naming

KINDS = {400: "validation", 413: "validation", 422: "validation", 429: "overloaded", 503: "overloaded"}


def body_of(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """The JSON object, also for the last event of a stream. Of a key or a path there is no kind: the status says it."""
    kind = KINDS.get(error.status, "generation" if error.status >= 500 else None)
    return {"error": naming(error), **({"error_type": kind} if kind else {})}
