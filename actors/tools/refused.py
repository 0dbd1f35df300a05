"""What cannot be asked of an MCP server, or was not answered. Needs no package that not everybody has."""

from __future__ import annotations


class ToolTrouble(Exception):
    """A server cannot be asked, or has not answered; the message is for the client."""

    def __init__(self, message: str, status: int = 424) -> None:
        super().__init__(message)
        self.status = status


class Refused(Exception):
    """What is asked for cannot be had; the message names the option."""
