"""Errors as Anthropic's clients read them."""

from __future__ import annotations

from typing import Any

from ..errors import ApiError

TOO_LONG = "context_length_exceeded"  # a code of OpenAI's; Anthropic has none for it
TYPES = {
    401: "authentication_error",
    402: "billing_error",
    403: "permission_error",
    404: "not_found_error",
    408: "timeout_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(message: str, status: int, request_id: str | None = None) -> dict[str, Any]:
    """The JSON object, also for an event inside a stream."""
    kind = TYPES.get(status, "invalid_request_error" if status < 500 else "api_error")
    body: dict[str, Any] = {"type": "error", "error": {"type": kind, "message": message}}
    return body | {"request_id": request_id} if request_id is not None else body


def body_of(error: ApiError, request_id: str | None = None) -> dict[str, Any]:
    """An error of this server in that form; clients act on some codes, and on the first words of one message."""
    message = f"prompt is too long: {error.message}" if error.code == TOO_LONG else error.message
    body = error_body(message, error.status, request_id)
    if error.code is not None:
        body["error"]["details"] = {"error_code": error.code}
    return body
