"""`actorserve route --replicas http://a:8000 http://b:8000`: one address before several servers with the same model."""

from __future__ import annotations

import argparse
import sys

from ..route import settings as options

DESCRIPTION = """Send requests to several servers with the same model: each where most of its prompt was computed, as
far as load allows. When a server dies or stands still, its streams go on at their next token elsewhere, and what is not
streamed is sent again. It keeps no state that matters; any number of routers may stand side by side.
    actorserve route --replicas http://10.0.0.1:8000 http://10.0.0.2:8000 --host 0.0.0.0 --port 8080"""
FAILED = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its options."""
    options.add_arguments(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 once it was told to end, and has."""
    import logging

    from ..route.server import serve
    from ..runtime.descriptors import raise_limit

    settings = options.read_settings(arguments)
    raise_limit()  # each request is two connections
    form = "%(asctime)s %(name)s | %(levelname)s %(message)s"
    logging.basicConfig(stream=sys.stderr, level=settings.log_level.upper(), format=form)
    try:
        serve(settings, lambda address: print(f"routing at {address}", flush=True))
    except OSError as error:
        print(f"actorserve: error: cannot listen on {settings.host}:{settings.port}: {error}", file=sys.stderr)
        return FAILED
    return 0
