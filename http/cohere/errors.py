"""Errors as Cohere's clients read them."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError
from ..generation.adapter import naming


def body_of(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """The JSON object."""
    return {"id": request_id, "message": naming(error)}
