"""How faults are asked for."""

from __future__ import annotations

import argparse
import signal

from operating import NAMES as OPERATIONS

from actorserve.actors.protocol.kinds import HTTP2, KINDS, RELAY

FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "exception": signal.SIGUSR1}
RELAYS = (RELAY, HTTP2)


def make_parser(about: str) -> argparse.ArgumentParser:
    """What is left over are options of the server."""
    parser = argparse.ArgumentParser(
        description=about, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--faults", type=int, help="200 if left out, or none with --commands")
    parser.add_argument(
        "--commands", nargs="+", default=[], metavar="'WORDS …'", help="of `actorserve`, such as 'scale 3'"
    )
    parser.add_argument("--seconds", type=float, default=120, help="for which --commands are given")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--requests", type=int, default=60, help="different ones")
    parser.add_argument("--every", type=float, default=0.3, help="seconds between two faults, on average")
    parser.add_argument("--abort", type=float, default=0.1, help="share of requests that are broken off on purpose")
    parser.add_argument("--actors", nargs="+", choices=[*KINDS, *RELAYS], help="who is hit; all if left out")
    parser.add_argument("--signals", nargs="+", default=list(FAULTS), choices=FAULTS, help="the kinds of faults")
    parser.add_argument("--pooled", action="store_true", help="the model makes vectors")
    parser.add_argument("--embedded", action="store_true", help="some prompts are embeddings of the packaged model")
    parser.add_argument("--pictures", action="store_true", help="the model takes pictures")
    parser.add_argument("--films", action="store_true", help="the model takes pictures and films")
    parser.add_argument("--sounds", action="store_true", help="the model listens")
    parser.add_argument("--realtime", action="store_true", help="over /v1/realtime; with --sounds transcriptions")
    parser.add_argument("--sessions", action="store_true", help="turns of sessions, and their tokens at once")
    parser.add_argument("--responses", action="store_true", help="/v1/responses, with a model that calls tools")
    parser.add_argument("--heard", action="store_true", help="the model takes sounds in conversations")
    parser.add_argument("--lora", type=int, default=0, metavar="COUNT", help="adapters of the packaged model")
    parser.add_argument("--relay", action="store_true", help="half of the clients come by a Unix socket (--uds)")
    parser.add_argument("--http2", action="store_true", help="half of the clients come over HTTP/2 (--http2-port)")
    parser.add_argument("--operations", nargs="+", default=[], choices=OPERATIONS, help="what is done all the while")
    parser.add_argument("--also", action="append", default=[], metavar="MODEL[,option=value…]", help="as the server's")
    parser.add_argument("--nodes", type=int, default=1, metavar="COUNT", help="machines of a pipeline")
    parser.add_argument("--elsewhere", type=int, default=0, metavar="COUNT", help="engines on other machines")
    parser.add_argument("--kill-supervisor", action="store_true", help="end with kill -9 of the supervisor under load")
    parser.add_argument("--seed", type=int, default=0)
    return parser
