"""Errors as Ollama's clients read them."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError
from ..generation.adapter import naming


def body_of(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """The JSON object, also for the last line of a stream; clients look for the words `not found`."""
    if error.code == "model_not_found":
        return {"error": f"model not found: {error.message}"}
    return {"error": naming(error)}
