"""The options that `chat` and `run` share, and what becomes of them."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING, Any

from ..options.config import ConfigError

if TYPE_CHECKING:
    from .client import Client

KEY, OTHER_KEY = "ACTORSERVE_API_KEY", "OPENAI_API_KEY"
WHOLE_INPUT = "-"
FAILED = 1


def add_chat(parser: argparse.ArgumentParser) -> None:
    """What is said, and how it is answered."""
    group = parser.add_argument_group("chat")
    said = "one message, whose answer is all; - is all of standard input. More of them are its parts"
    group.add_argument("--message", "-q", "--quick", metavar="TEXT", action="append", help=said)
    group.add_argument("--system", metavar="TEXT", help="an instruction for the model")
    group.add_argument("--temperature", type=float, metavar="N", help="0: always the likeliest word")
    group.add_argument("--max-tokens", type=int, metavar="TOKENS", help="of an answer")


def key_of(environ: dict[str, str], named: bool) -> str | None:
    """The key for a server. OpenAI's own is for one alone that was named by --url: others have no business with it."""
    return environ.get(KEY) or (environ.get(OTHER_KEY) if named else None) or None


def talk(client: Client, arguments: argparse.Namespace, model: str | None = None) -> int:
    """Chat until the end; the exit status."""
    from .client import ChatError
    from .conversation import Conversation
    from .terminal import INTERRUPTED, Chat

    options: dict[str, Any] = {}
    for name in ("temperature", "max_tokens"):
        if getattr(arguments, name) is not None:
            options[name] = getattr(arguments, name)
    for stream in (sys.stdin, sys.stdout):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]
    try:
        chat = Chat(client, model or client.models()[0], Conversation(arguments.system), options)
        return chat.run() if arguments.message is None else chat.ask(_message(arguments.message))
    except ChatError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _message(parts: list[str]) -> str:
    """The parts together."""
    message = "\n\n".join(sys.stdin.read() if part == WHOLE_INPUT else part for part in parts)
    if not message.strip():
        raise ConfigError("--message: it is empty")
    return message
