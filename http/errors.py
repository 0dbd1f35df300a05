"""Errors as OpenAI's clients read them: one JSON body for every status. Knows no route, and no HTTP."""

from __future__ import annotations

ENDING = "server_ending"  # the code of what another server could answer, but not this one any more
UNKNOWN_PATH, WRONG_METHOD = "unknown_url", "method_not_supported"
CLIENT_ERROR, SERVER_ERROR = "invalid_request_error", "server_error"
TYPES = {401: "authentication_error", 408: "timeout_error", 429: "rate_limit_error", 503: "service_unavailable_error"}


class ApiError(Exception):
    """An answer that is an error. `param` names the request's field, `retry_after` is in seconds,
    `lengths` are the tokens of a prompt that is too long, and the most that it may have.

    `code` is OpenAI's where there is one. It is a text or null, as OpenAI's clients have it: strict ones read no
    number there, and those who want the status have it in the answer's head.
    """

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None = None,
        code: str | None = None,
        retry_after: int | None = None,
        lengths: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.message = message
        self.param = param
        self.code = code
        self.retry_after = retry_after
        self.lengths = lengths

    def body(self) -> dict[str, object]:
        """The JSON object, also for an event inside a stream."""
        return {"error": self.fields()}

    def fields(self) -> dict[str, object]:
        """What it says of the error."""
        kind = TYPES.get(self.status, CLIENT_ERROR if self.status < 500 else SERVER_ERROR)
        return {"message": self.message, "type": kind, "param": self.param, "code": self.code}


def bad_request(message: str, param: str | None = None) -> ApiError:
    """400, with the field that is wrong."""
    return ApiError(400, message, param)


def overloaded(message: str) -> ApiError:
    """503 that is worth another try soon."""
    return ApiError(503, message, retry_after=1)
