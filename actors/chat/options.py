"""The options that `chat`, `run` and `complete` share, and what becomes of them."""

from __future__ import annotations

import argparse
import io
import sys
from math import isfinite
from typing import TYPE_CHECKING, Any

from ..options.config import ConfigError

if TYPE_CHECKING:
    from .client import Client

KEY, OTHER_KEY = "ACTORSERVE_API_KEY", "OPENAI_API_KEY"
WHOLE_INPUT = "-"
FAILED = 1


def add_chat(parser: argparse.ArgumentParser) -> argparse._ActionsContainer:
    """What is said, and how it is answered; its group of options."""
    group = parser.add_argument_group("chat")
    said = "one message, whose answer is all; - is all of standard input. More of them are its parts"
    group.add_argument("--message", "-q", "--quick", metavar="TEXT", action="append", help=said)
    group.add_argument("--system", metavar="TEXT", help="an instruction for the model")
    add_drawing(group)
    return group


def add_drawing(group: argparse._ActionsContainer, max_tokens: int | None = None) -> None:
    """How tokens are drawn, and how many; `max_tokens`: how many if nothing is said."""
    default = "" if max_tokens is None else " (default: %(default)s)"
    group.add_argument("--temperature", type=_finite, metavar="N", help="0: always the likeliest word")
    group.add_argument("--max-tokens", type=int, metavar="TOKENS", default=max_tokens, help=f"of an answer{default}")


def _finite(text: str) -> float:
    value = float(text)
    if not isfinite(value):
        raise ValueError
    return value


def key_of(environ: dict[str, str], named: bool) -> str | None:
    """The key for a server. OpenAI's own is for one alone that was named by --url: others have no business with it."""
    return environ.get(KEY) or (environ.get(OTHER_KEY) if named else None) or None


def talk(client: Client, arguments: argparse.Namespace, model: str | None = None) -> int:
    """Chat until the end; the exit status."""
    from .client import ChatError
    from .conversation import Conversation
    from .screen import INTERRUPTED
    from .terminal import Chat

    let_any_text_pass()
    try:
        name, options = model or client.models()[0], drawing_of(arguments)
        chat = Chat(client, name, Conversation(arguments.system), options)
        return chat.run() if arguments.message is None else chat.ask(_message(arguments.message))
    except ChatError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def complete(client: Client, arguments: argparse.Namespace) -> int:
    """Show what follows the prompt; the exit status."""
    from .client import ChatError
    from .screen import INTERRUPTED, Screen

    let_any_text_pass()
    try:
        prompt = _prompt(arguments.prompt)
        pieces = client.complete(arguments.model or client.models()[0], prompt, drawing_of(arguments))
        return Screen().answer(client, pieces, [])
    except ChatError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def drawing_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What add_drawing's options say, as fields of a request."""
    given = {name: getattr(arguments, name) for name in ("temperature", "max_tokens")}
    return {name: value for name, value in given.items() if value is not None}


def let_any_text_pass() -> None:
    """What this terminal's encoding does not have is no error."""
    for stream in (sys.stdin, sys.stdout):
        if isinstance(stream, io.TextIOWrapper):  # one that was closed is None
            stream.reconfigure(errors="replace")


def _prompt(given: str) -> str:
    """To the letter, but for the last newline of what is read: `echo` writes one."""
    prompt = sys.stdin.read().removesuffix("\n") if given == WHOLE_INPUT else given
    if not prompt:
        raise ConfigError("PROMPT: it is empty")
    return prompt


def _message(parts: list[str]) -> str:
    """The parts together."""
    message = "\n\n".join(sys.stdin.read() if part == WHOLE_INPUT else part for part in parts)
    if not message.strip():
        raise ConfigError("--message: it is empty")
    return message
