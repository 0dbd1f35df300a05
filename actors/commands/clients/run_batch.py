"""`actorserve run-batch -i IN.jsonl -o OUT.jsonl [MODEL]`: answers a file of requests in OpenAI's batch format."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from ...bench.client_tls import add_client_certificate, client_tls, own_tls
from ...bench.target import check_headers, own_key
from ...options.command_line import add_options, read_config
from ...options.config import ConfigError
from ..places import given_words

if TYPE_CHECKING:
    from ...batch.files import Answers
    from ...batch.sender import Settings
    from ...batch.servers import BatchServer

DESCRIPTION = """Answer a file of requests in OpenAI's batch format.

A server is started for it, with the options of `actorserve launch`, and again if it should end; or it is one that
runs: --base-url. Each line of the input has custom_id, url and body; each answer is a line of the output. A run that
was broken off, also by kill -9, goes on where it was: the same command sends what has no answer yet.
    actorserve run-batch -i requests.jsonl -o answers.jsonl MODEL
    actorserve run-batch -i requests.jsonl -o answers.jsonl --base-url http://127.0.0.1:8000"""
KEYS = ("ACTORSERVE_API_KEY", "OPENAI_API_KEY")
FAILED = 1
INTERRUPTED = 130


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Its own options, and those of the server."""
    group = parser.add_argument_group("batch")
    group.add_argument("--input-file", "-i", type=Path, required=True, metavar="FILE", help="JSON Lines of requests")
    group.add_argument("--output-file", "-o", type=Path, required=True, metavar="FILE", help="JSON Lines of answers")
    group.add_argument("--base-url", "--url", metavar="URL", help="a server that runs; else one is started and stopped")
    group.add_argument("--batch-concurrency", type=int, default=64, metavar="N", help="requests at once (64)")
    group.add_argument(
        "--batch-retries", type=int, default=10, metavar="N", help="of a request that got no answer (10)"
    )
    group.add_argument("--batch-timeout", type=float, default=3600.0, metavar="SECONDS", help="for one answer (3600)")
    group.add_argument(
        "--ready-timeout", type=float, default=7200.0, metavar="SECONDS", help="for a server that is away (7200)"
    )
    add_client_certificate(group)
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    add_options(parser)


def run(arguments: argparse.Namespace) -> int:
    """0 once each line has an answer, whatever it says; 1 if the server or the disk failed."""
    from ...batch.files import Answers, BatchError, names
    from ...bench.server import ServerError

    words = given_words(arguments)
    if arguments.base_url is not None and given_words(_without_key(arguments)):
        raise ConfigError(
            "--base-url names a server that runs: options of the server to start do not go with it, but --api-key does"
        )
    if arguments.batch_concurrency < 1 or arguments.batch_retries < 0:
        raise ConfigError("--batch-concurrency must be at least 1, and --batch-retries at least 0")
    if arguments.output_file.exists() and arguments.output_file.samefile(arguments.input_file):
        raise ConfigError(f"--output-file: {arguments.output_file} is the input: name a new file")
    expected = names(arguments.input_file)
    with Answers(arguments.output_file, expected) as answers:
        try:
            return _run(arguments, words, answers, len(expected))
        except (ServerError, BatchError) as error:
            print(f"actorserve: error: {error}", file=sys.stderr)
            status = FAILED
        except KeyboardInterrupt:
            status = INTERRUPTED
        said = f"{len(answers.done)} of {len(expected)} have an answer; the same command goes on with the rest"
        print(f"actorserve: {said}", file=sys.stderr)
        return status


def _without_key(arguments: argparse.Namespace) -> argparse.Namespace:
    """With --base-url it is the client's."""
    return argparse.Namespace(**{name: value for name, value in vars(arguments).items() if name != "api_key"})


def _run(arguments: argparse.Namespace, words: list[str], answers: Answers, total: int) -> int:
    from ...batch.sender import Settings
    from ...batch.servers import OwnServer, RunningServer

    if arguments.base_url is None:
        config = read_config(arguments)
        key = own_key(config)
        tls = own_tls(arguments, config)
    else:
        keys = [*getattr(arguments, "api_key", ()), *filter(None, map(os.environ.get, KEYS))]
        key = keys[0] if keys else None
        tls = client_tls(arguments, own=False)
    if key is not None:
        check_headers({"Authorization": key}, "the API key")
    settings = Settings(arguments.batch_concurrency, arguments.batch_retries, arguments.batch_timeout, key)
    if len(answers.done) == total:
        return _tell(arguments, 0, answers.refused, total)
    if arguments.base_url is not None:
        return _send(
            arguments, RunningServer(arguments.base_url, arguments.ready_timeout, tls), settings, answers, total
        )
    server = OwnServer(words, arguments.ready_timeout, tls)
    server.start()
    try:
        return _send(arguments, server, settings, answers, total)
    finally:
        server.stop()


def _send(arguments: argparse.Namespace, server: BatchServer, settings: Settings, answers: Answers, total: int) -> int:
    from tqdm import tqdm

    from ...batch.files import BatchError, requests
    from ...batch.sender import Sender

    hidden = arguments.disable_tqdm or not sys.stderr.isatty()
    done = frozenset(answers.done)
    waiting = (request for _, request in requests(arguments.input_file) if request.custom_id not in done)
    with tqdm(total=total, initial=len(done), unit="request", disable=hidden) as bar:
        sender = Sender(server, settings, answers, bar.update)
        asyncio.run(sender.run(waiting))
    if len(answers.done) != total:
        raise BatchError(f"--input-file: {arguments.input_file} has changed since the run began")
    return _tell(arguments, sender.answered, answers.refused, total)


def _tell(arguments: argparse.Namespace, answered: int, refused: int, total: int) -> int:
    wrong = f", {refused} of them with an error" if refused else ""
    if refused == total == 1:
        wrong = ", with an error"
    before = f" ({total - answered} by an earlier run)" if answered < total else ""
    print(
        f"{total} {'request is' if total == 1 else 'requests are'} answered in {arguments.output_file}{before}{wrong}",
        file=sys.stderr,
    )
    return 0
