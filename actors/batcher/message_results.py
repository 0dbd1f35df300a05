"""A line of answers as Anthropic's clients read it, of one in OpenAI's form."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

INVALID = "invalid_request_error"
INTERNAL = "internal_error"  # a code of lines that were not asked, and so are these
RESULTS = {"batch_expired": "expired", "batch_cancelled": "canceled"}


def message_result(answer: dict[str, Any]) -> dict[str, Any]:
    """The same."""
    return {"custom_id": answer["custom_id"], "result": _result(answer["response"], answer["error"])}


def _result(response: dict[str, Any] | None, error: dict[str, str] | None) -> dict[str, Any]:
    if error is not None:
        told = RESULTS.get(error["code"])
        kind = "api_error" if error["code"] == INTERNAL else INVALID
        return {"type": told} if told is not None else _errored(_error_of(error["message"], kind))
    assert response is not None, "a line is answered, or there is an error"
    body = response["body"]
    if response["status_code"] == HTTPStatus.OK:
        return {"type": "succeeded", "message": body}
    if isinstance(body, dict) and body.get("type") == "error":
        return _errored(body)
    return _errored(_error_of(_message_of(body)))


def _message_of(body: Any) -> str:
    """Of what others have said."""
    error = body.get("error") if isinstance(body, dict) else None
    message = error.get("message") if isinstance(error, dict) else None
    return message if isinstance(message, str) else str(body)


def _errored(error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "errored", "error": {"request_id": None} | error}


def _error_of(message: str, kind: str = INVALID) -> dict[str, Any]:
    return {"type": "error", "error": {"type": kind, "message": message}}
