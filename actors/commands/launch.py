"""`actorserve launch [MODEL]`: serve a model until a signal ends it."""

from __future__ import annotations

import argparse
import gc
import os

from ..options.command_line import add_options, read_config
from ..options.launcher import LAUNCHED, place_of

DESCRIPTION = "Serve a model over the OpenAI API; without MODEL, the small one that is packaged."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of the server."""
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """The exit status is the server's."""
    config = read_config(arguments)
    if config.distributed_executor_backend == LAUNCHED and place_of(os.environ).local_rank:
        print("another process of this machine does what it has to", flush=True)
        return 0
    gc.disable()  # it would look again and again through what stays
    from ..supervisor.launch import launch

    gc.freeze()
    gc.enable()
    return launch(config)
