"""Errors as clients of llama.cpp's server read them."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError
from ..generation.adapter import naming

TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    501: "not_supported_error",
    503: "unavailable_error",
}
TOO_LONG = "context_length_exceeded"


def body_of(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """The JSON object, also for the last event of a stream: the code is the status."""
    kind = TYPES.get(error.status, "invalid_request_error" if error.status < 500 else "server_error")
    if error.code == TOO_LONG:
        kind = "exceed_context_size_error"
    told = {"code": error.status, "message": naming(error), "type": kind}
    if error.lengths is not None:
        told["n_prompt_tokens"], told["n_ctx"] = error.lengths
    return {"error": told}
