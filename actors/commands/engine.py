"""`actorserve engine [MODEL] --steward HOST:PORT`: compute for servers on other machines, and serve nobody here."""

from __future__ import annotations

import argparse

from ..options.command_line import add_options, read_config
from ..options.config import ConfigError

DESCRIPTION = """Compute on this machine for servers on others, which name it in --engines:
    actorserve engine MODEL --steward 0.0.0.0:8100 --engine-secret-file secret
    actorserve launch MODEL --engines 10.0.0.2:8100 10.0.0.3:8100 --data-parallel-size 0 --engine-secret-file secret
Both sides have to have the same model and the same options of computing; what differs is refused by name."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Those of the server; what concerns clients means nothing here."""
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit status is the engine's."""
    config = read_config(arguments)
    if config.steward is None:
        raise ConfigError("--steward: the address that servers reach this machine by, such as 0.0.0.0:8100")
    from ..supervisor.launch import launch

    return launch(config)
