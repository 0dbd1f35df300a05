"""What is made of a command line of `actorserve launch`."""

from __future__ import annotations

import pytest

from actorserve.actors.cli import main, make_parser
from actorserve.actors.options.command_line import read_config
from actorserve.actors.options.config import Config


def read(*argv: str) -> Config:
    return read_config(make_parser("launch").parse_args(["launch", *argv]))


def refused(*argv: str) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["launch", *argv])
    assert ended.value.code == 2
