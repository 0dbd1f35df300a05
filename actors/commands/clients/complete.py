"""`actorserve complete`: what follows a text, by a server that runs."""

from __future__ import annotations

import argparse

from ...chat.options import FAILED, WHOLE_INPUT, add_drawing, complete
from .chat import add_target, find_client

DESCRIPTION = """Let a running server write on where a text ends, without a chat template (/v1/completions).

Without --url it is the one that runs on this machine; its key is found as by `actorserve chat`. What follows the text
is written as it comes, and nothing else:
    actorserve complete 'The capital of France is' --max-tokens 5
    actorserve complete --temperature 0 < beginning.txt"""
MAX_TOKENS = 128  # an API's 16 are a line


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The text, which server and which of its models, and how it goes on."""
    text = "the text; - (and none): all of standard input, without its last newline"
    parser.add_argument("prompt", metavar="PROMPT", nargs="?", default=WHOLE_INPUT, help=text)
    add_target(parser)
    add_drawing(parser, MAX_TOKENS)


def run(arguments: argparse.Namespace) -> int:
    """0 once the text has ended; 1 if there is no server, or it did not answer."""
    client = find_client(arguments)
    return FAILED if client is None else complete(client, arguments)
