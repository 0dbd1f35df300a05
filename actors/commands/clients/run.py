"""`actorserve run [MODEL]`: starts a server, chats with it in the terminal, and stops it."""

from __future__ import annotations

import argparse
import os
import sys

from ...bench.client_tls import add_client_certificate, own_tls
from ...bench.target import own_key
from ...chat.options import FAILED, add_chat, key_of, talk
from ...options.command_line import add_options, read_config
from ..places import given_words

DESCRIPTION = """Start a server, chat with it in the terminal, and stop it; `actorserve chat` talks to one that runs.

The options are those of `actorserve launch`, and those of the chat. The server takes a free port unless --port names
one, and others may use it meanwhile."""
READY_S = 7200.0  # a large model may have to be downloaded first
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the server and those of the chat."""
    add_options(parser)
    add_client_certificate(add_chat(parser))


def run(arguments: argparse.Namespace) -> int:
    """The chat's status; 1 if the server did not start."""
    config = read_config(arguments)
    from rich.console import Console

    from ...bench.server import ServerError, StartedServer
    from ...chat.client import Client

    tls = own_tls(arguments, config)
    words = given_words(arguments)
    key = own_key(config) or key_of(dict(os.environ), named=False)
    beside = Console(stderr=True, highlight=False, emoji=False, markup=False)
    server = StartedServer(words, READY_S, own_group=True, tls=tls)
    try:
        with beside.status(f"starting {config.served_names()[0]}"):
            server.__enter__()
    except ServerError as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED
    try:
        return talk(Client(server.base_url, key, tls), arguments)
    finally:
        with beside.status("stopping"):
            server.__exit__(None, None, None)
