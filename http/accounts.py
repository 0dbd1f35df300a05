"""Clients' keys as the app sees them: who a key belongs to, and what it has used. Knows no HTTP."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from actorserve.actors.accounts.account import Account

from .errors import ApiError


@dataclass(frozen=True)
class Usage:
    """What one key has used since the server's start, and what it may use."""

    name: str
    requests: int  # answered
    prompt_tokens: int
    completion_tokens: int
    running: int  # requests
    reserved_tokens: int  # of a budget, for those that run
    requests_last_minute: int
    tokens_last_minute: int
    refused: dict[str, int]  # requests, by the limit that was met
    limits: dict[str, int]  # those there are

    def body(self) -> dict[str, object]:
        """As a JSON object."""
        return {"object": "usage", **asdict(self), "total_tokens": self.prompt_tokens + self.completion_tokens}


class Accounts:
    """The keys of --key-file; as it stands, there is no such file."""

    enabled = False

    def find(self, key: bytes) -> Account | None:
        """Whose key this is."""
        return None

    def named(self, name: str) -> Account | None:
        """That of this name, if the file has it still."""
        return None

    def usage(self, name: str | None = None) -> list[Usage]:
        """Of all whose names have stood in the file, or of one."""
        return []


def check_model_of(account: Account | None, model: str) -> None:
    """404, as where the model is not there, unless this key may ask for it."""
    if account is not None and not account.may_ask_for(model):
        text = f"The model `{model}` does not exist for this key. There are: {', '.join(account.models)}."
        raise ApiError(404, text, "model", "model_not_found")
