"""What is wrong with a picture, film or sound: for the client, who is told its place in the request."""

from __future__ import annotations


class MediaRefused(ValueError):
    """It cannot be taken; the message says why, and begins behind the field's name."""

    def __init__(self, message: str, status: int = 400) -> None:
        super().__init__(message)
        self.status = status
