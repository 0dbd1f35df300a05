"""How faults are asked for."""

from __future__ import annotations

import argparse
import signal
from collections.abc import Sequence

from actorserve.actors.options.command_line import add_options
from actorserve.actors.options.parser import Parser
from actorserve.actors.protocol.kinds import HTTP2, KINDS, RELAY
from tools.chaos.clients.mixed import MADE
from tools.chaos.operating import NAMES as OPERATIONS

FAULTS = {"kill -9": signal.SIGKILL, "SIGSTOP": signal.SIGSTOP, "exception": signal.SIGUSR1}
RELAYS = (RELAY, HTTP2)
BY_POSTS = ("embedded", "pooled", "pictures", "films", "heard")  # whose requests are sent over HTTP/2, too
OF_PACKAGED = ("embedded", "lora")  # made for the packaged model


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
    parser.add_argument(
        "--batches", action="store_true", help="files of lines, and messages, by /v1/batches and /v1/messages/batches"
    )
    parser.add_argument("--doors", action="store_true", help="other APIs than OpenAI's, beams, tools, stored responses")
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


def read_options(
    parser: argparse.ArgumentParser, words: Sequence[str] | None = None
) -> tuple[argparse.Namespace, list[str]]:
    """The tool's own, and those of the server."""
    options, others = parser.parse_known_args(words)
    if trouble := _trouble(options, others):
        parser.error(trouble)
    options.scripted = "scripted" in others
    if options.faults is None:
        options.faults = 0 if options.commands else 200
    return options, others


def _trouble(options: argparse.Namespace, others: Sequence[str]) -> str:
    """Why these do not go together."""
    given = [name for name in (*MADE, "realtime") if getattr(options, name)]
    if options.realtime and options.sounds and (more := [name for name in given if name not in ("realtime", "sounds")]):
        return f"--realtime with --sounds is for a model that listens alone: leave out --{more[0]}"
    if options.http2 and (more := [name for name in given if name not in BY_POSTS]):
        return f"--{more[0]} does not go over HTTP/2: leave out --http2"
    if options.responses and (more := [name for name in OF_PACKAGED if getattr(options, name)]):
        return f"--{more[0]} is for the packaged model, and --responses has one of its own: leave one of them out"
    if "weights" in options.operations and (options.responses or _names_model(others)):
        return "--operations weights is for the packaged model: leave out --responses, and name no other one"
    if "adapters" in options.operations and not options.lora:
        return "--operations adapters needs adapters: give --lora COUNT, too"
    return ""


def _names_model(words: Sequence[str]) -> bool:
    parser = Parser(prog="the server")
    add_options(parser)
    return "model" in parser.parse_args(words)
