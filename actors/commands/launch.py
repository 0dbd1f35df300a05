"""`actorserve launch [MODEL]`: serve a model until a signal ends it."""

from __future__ import annotations

import argparse

from ..options.command_line import add_options, read_config

DESCRIPTION = "Serve a model over the OpenAI API; without MODEL, the small one that is packaged."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the server."""
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit status is the server's."""
    config = read_config(arguments)
    from ..supervisor.launch import launch

    return launch(config)
