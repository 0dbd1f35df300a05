"""What is answered where a prompt cannot be rendered."""

from __future__ import annotations

GONE = 499  # the client has gone: nobody reads this answer
NO_TOKENIZER = "the server has no tokenizer (--skip-tokenizer-init): {} takes token ids alone"
TOO_LONG = "context_length_exceeded"  # by this code clients know that they have to shorten


class RenderRefused(ValueError):
    """The request cannot be; status, message, field and code for the client, and how long a prompt is and may be."""

    def __init__(
        self,
        status: int,
        message: str,
        param: str | None,
        code: str | None = None,
        lengths: tuple[int, int] | None = None,
    ) -> None:
        super().__init__(message)
        self.status = status
        self.param = param
        self.code = code
        self.lengths = lengths
