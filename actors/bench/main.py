"""The subcommands of `actorserve bench`, each from its options to its exit status."""

from __future__ import annotations

import argparse
import math
import signal
import sys
from pathlib import Path
from typing import Any

from rich.console import Console

import actorserve

from ..options.config import ConfigError
from . import options
from .mm import mm
from .results.compare import compare
from .results.plot import plot
from .results.report import UnwrittenError, check_writable, document, load, save, show
from .serve import Bench, iterate, opened, point, run_once, sweep, wanted
from .server import ServerError
from .startup import startup
from .sweep import failed, run_sweep, shown
from .target import address_of
from .termination import heard
from .tune import tune

FAILED = 1
WIDE = 160  # columns where there is no terminal


def main(arguments: argparse.Namespace) -> int:
    """0 if every request went well. A termination ends the server that was started, too."""
    console = Console(width=None if sys.stdout.isatty() else WIDE, highlight=False)
    try:
        with heard():
            if arguments.bench == "compare":
                return 0 if compare(console, load(arguments.a), load(arguments.b)) else FAILED
            if arguments.bench == "plot":
                plot([(name, load(name)) for name in arguments.files], arguments.output)
                return 0
            if arguments.bench == "sweep":
                return _sweep(arguments, console)
            if arguments.bench == "mm":
                return mm(arguments, console)
            if arguments.bench == "startup":
                return startup(arguments, console)
            return _measure(arguments, console)
    except (ServerError, UnwrittenError) as error:
        print(f"actorserve: error: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


def _check(arguments: argparse.Namespace) -> list[str]:
    """Mistakes are said before a server is started; which metrics to show."""
    options.limits_of(arguments.goodput)
    options.percentiles_of(arguments.metric_percentiles)
    options.headers_of(arguments)
    options.extra_body_of(arguments)
    options.check_load(arguments)
    if arguments.bench != "latency" and arguments.num_warmups < 0:
        raise ConfigError("--num-warmups: at least 0")
    for name in ("repeat", "batch_size", "num_iters"):
        if getattr(arguments, name, 1) < 1:
            raise ConfigError(f"--{name.replace('_', '-')}: at least 1")
    wanted(arguments)
    if arguments.base_url:
        address_of("--base-url", arguments.base_url)
    if arguments.tokenizer and not (path := Path(arguments.tokenizer) / "tokenizer.json").is_file():
        raise ConfigError(f"--tokenizer: there is no file {path}")
    return options.metrics_of(arguments.percentile_metrics)


def _sweep(arguments: argparse.Namespace, console: Console) -> int:
    options.limits_of(arguments.goodput)
    options.percentiles_of(arguments.metric_percentiles)
    options.headers_of(arguments)
    options.extra_body_of(arguments)
    return FAILED if failed(run_sweep(arguments, console)) else 0


def _measure(arguments: argparse.Namespace, console: Console) -> int:
    metrics, path = _check(arguments), _result_file(arguments)
    if path is not None:
        check_writable(path)
    if arguments.bench == "tune":
        points = tune(arguments, console)
        facts: dict[str, Any] = {}
    else:
        with opened(arguments) as bench:
            points = _points(bench, arguments)
            facts = _facts(bench)
        show(console, arguments.bench, points, metrics)
    if path is not None:
        save(path, document(arguments.bench, facts | {"options": _said(arguments)}, points))
        console.print(f"written to {path}", markup=False)
    return FAILED if failed(points) else 0


def _result_file(arguments: argparse.Namespace) -> Path | None:
    """Where the results go, if that is wanted."""
    if not (arguments.save_result or arguments.save_detailed or arguments.result_filename):
        return None
    return Path(arguments.result_dir) / (arguments.result_filename or f"bench-{arguments.bench}.json")


def _points(bench: Bench, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    if arguments.bench == "latency":
        return iterate(bench, arguments)
    if arguments.bench == "throughput":
        runs = [run_once(bench, arguments, math.inf, None) for _ in range(arguments.repeat)]
        return [point("all at once", math.inf, None, runs)]
    return sweep(bench, arguments)


def _facts(bench: Bench) -> dict[str, Any]:
    """What was measured, for whoever reads the file later."""
    target = bench.target
    return {
        "version": actorserve.__version__,
        "base_url": target.base_url,
        "model": target.model,
        "endpoint": target.url.removeprefix(target.base_url),
        "continuous_usage": target.continuous_usage,
        "ignore_eos": target.ignore_eos,
        "prompts_counted_by": bench.counted_by,
    }


def _said(arguments: argparse.Namespace) -> dict[str, Any]:
    """The options, without what must not stand in a file."""
    hidden = ("run", "api_key", "header", "command", "bench")
    found = {name: value for name, value in vars(arguments).items() if name not in hidden}
    return found | {"engine": shown(arguments.engine)}
