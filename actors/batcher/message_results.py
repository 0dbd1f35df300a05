"""A line of answers as Anthropic's clients read it, of one in OpenAI's form."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

RESULTS = {"batch_expired": "expired", "batch_cancelled": "canceled"}  # by codes of lines that were not asked


def message_result(answer: dict[str, Any]) -> dict[str, Any]:
    """The same."""
    return {"custom_id": answer["custom_id"], "result": _result(answer["response"], answer["error"])}


def _result(response: dict[str, Any] | None, error: dict[str, str] | None) -> dict[str, Any]:
    if error is not None:
        told = RESULTS.get(error["code"])
        return {"type": told} if told is not None else _errored(_error_of(error["message"]))
    assert response is not None, "a line is answered, or there is an error"
    body = response["body"]
    if response["status_code"] == HTTPStatus.OK:
        return {"type": "succeeded", "message": body}
    if isinstance(body, dict) and body.get("type") == "error":
        return _errored(body)
    said = body["error"]["message"] if isinstance(body, dict) and "error" in body else str(body)  # said by others
    return _errored(_error_of(said))


def _errored(error: dict[str, Any]) -> dict[str, Any]:
    return {"type": "errored", "error": {"request_id": None} | error}


def _error_of(message: str) -> dict[str, Any]:
    return {"type": "error", "error": {"type": "invalid_request_error", "message": message}}
