"""`actorserve chat`: a chat in the terminal with a server that runs."""

from __future__ import annotations

import argparse
import os
import sys
from typing import TYPE_CHECKING

from ...bench.client_tls import add_client_certificate, client_tls
from ...chat.options import FAILED, add_chat, key_of, talk
from ...observer.options import Place, add_server

if TYPE_CHECKING:
    from ...chat.client import Client

DESCRIPTION = """Chat in the terminal with a running server; `actorserve run MODEL` starts one for it.

Without --url it is the one that runs on this machine. ACTORSERVE_API_KEY holds the key, or OPENAI_API_KEY for a server
that --url names. Through a pipe each line is a message, and the answers alone are written:
    echo 'What is the capital of France?' | actorserve chat
    actorserve chat --message 'What does this do?' --message - < program.py"""
DEFAULT = "http://127.0.0.1:8000"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Which server, which of its models, and the chat."""
    add_target(parser)
    add_chat(parser)


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which server, and which of its models."""
    parser.add_argument("--url", "--base-url", metavar="URL", help="a server of the OpenAI API, here or elsewhere")
    parser.add_argument("--model", "--model-name", metavar="NAME", help="one of its models (default: its first)")
    key = "the server's key; in ACTORSERVE_API_KEY it is not seen by others of this machine"
    parser.add_argument("--api-key", metavar="KEY", help=key)
    add_client_certificate(parser)
    add_server(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 once the chat has ended; 1 if there is no server, or it did not answer."""
    client = find_client(arguments)
    return FAILED if client is None else talk(client, arguments, arguments.model)


def find_client(arguments: argparse.Namespace) -> Client | None:
    """Of the server that `add_target`'s options name; None: there is none, which is said."""
    from ...chat.client import ChatError
    from ...observer.attach import AttachError

    try:
        return _client(arguments)
    except (ChatError, AttachError) as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return None


def _client(arguments: argparse.Namespace) -> Client:
    """The server that is named, or the one that is found here, whose certificate needs no authority."""
    from ...chat.client import Client
    from ...observer.attach import AttachError, attach, find_servers

    key = arguments.api_key or key_of(dict(os.environ), arguments.url is not None)
    if arguments.url is not None:
        return Client(arguments.url, key, client_tls(arguments, own=False))
    own = client_tls(arguments, own=True)
    if arguments.server == Place() and not find_servers():  # another user's, or in a container, it may be all the same
        return Client(DEFAULT, key, own)
    server = attach(*arguments.server)
    url = server.description.url
    server.close()
    if not url:
        raise AttachError(f"process {server.description.pid} is an LLM object, which speaks no HTTP")
    return Client(url, key, own)
