"""Options as `actorserve launch` reads them."""

from __future__ import annotations

from actorserve.actors.cli import make_parser
from actorserve.actors.options.command_line import read_config
from actorserve.actors.options.config import Config


def read(*argv: str) -> Config:
    return read_config(make_parser("launch").parse_args(["launch", *argv]))
