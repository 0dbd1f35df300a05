"""`actorserve bench sweep`: each of some servers under each of some loads, kept one by one, so that it can go on.

Servers and loads are files: a list of objects, one for each combination, or one object of lists, of which all
combinations are taken. A point that is kept in the folder is not measured again.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import hashlib
import itertools
import json
import os
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import yaml
from rich.console import Console
from rich.table import Table

from ..options.config import ConfigError
from ..options.parser import is_option
from . import options
from .client_tls import client_tls
from .results.pareto import frontier, per_user
from .results.plot import plot_pareto
from .results.report import UnwrittenError, check_writable, document, load, mean_of, number, save
from .serve import bench_of, sweep, wanted
from .server import ServerError, StartedServer
from .target import address_of

PARETO, WHOLE = "pareto.svg", "sweep.json"
FOLDER = "points"
COUNT = (  # the options that make another point
    *("base_url", "backend", "endpoint", "extra_body", "seed", "num_prompts", "dataset", "dataset_path", "goodput"),
    *("random_input_len", "random_output_len", "random_range_ratio", "prefix_len", "num_prefixes", "ignore_eos"),
    *("request_rate", "max_concurrency", "arrivals", "burstiness", "num_warmups", "repeat", "metric_percentiles"),
)
Values = dict[str, Any]


class Combination(NamedTuple):
    """Of options, as a file says them."""

    given: Values

    @property
    def words(self) -> list[str]:
        """As on a command line: `true` is an option without a value, `false` its opposite."""
        found: list[str] = []
        for name, value in self.given.items():
            option = f"--{name.lstrip('-').replace('_', '-')}"
            found += [options.switched(option, value)] if isinstance(value, bool) else [option, _word(value)]
        return found

    @property
    def name(self) -> str:
        """For people."""
        return shlex.join(shown(self.words)) or "as it is"


def _word(value: Any) -> str:
    return json.dumps(value) if isinstance(value, dict | list) else str(value)


Loads = Sequence[tuple[Combination, argparse.Namespace]]


def read_combinations(path: str | None, name: str) -> list[Combination]:
    """Of a YAML or JSON file; without one there is one combination of nothing."""
    if path is None:
        return [Combination({})]
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"{name} {path}: {error}") from None
    if isinstance(found, dict) and found and all(isinstance(values, list) and values for values in found.values()):
        return [Combination(dict(zip(found, each, strict=True))) for each in itertools.product(*found.values())]
    if isinstance(found, list) and found and all(isinstance(one, dict) for one in found):
        return [Combination(one) for one in found]
    raise ConfigError(f"{name} {path}: a list of objects, or one object with a list of values for each option")


def run_sweep(arguments: argparse.Namespace, console: Console) -> list[Values]:
    """All points, those that were kept before included."""
    if arguments.repeat < 1:
        raise ConfigError("--num-runs: at least 1")
    servers = read_combinations(arguments.serve_params, "--serve-params")
    if arguments.base_url and (arguments.serve_params or arguments.engine):
        raise ConfigError("--base-url names a server that runs: --serve-params and options behind -- do not go with it")
    loads = [(one, with_load(arguments, one)) for one in read_combinations(arguments.bench_params, "--bench-params")]
    folder = Path(arguments.output_dir)
    check_writable(folder / WHOLE)
    found: dict[tuple[int, int], list[Values]] = {}  # by the numbers of server and load
    try:
        for place, server in enumerate(servers):
            for load, points in _of_server(arguments, server, loads, folder / FOLDER, console):
                found[place, load] = points
    finally:
        points = [point for _, row in sorted(found.items()) for point in row]
        if points:
            _show(console, points)
    save(folder / WHOLE, document("sweep", {"options": {"engine": shown(arguments.engine)}}, points))
    if plot_pareto(points, str(folder / PARETO)):
        console.print(f"written to {folder / PARETO}", markup=False)
    else:
        console.print("no plot: pip install 'actorserve[bench]' brings matplotlib; the points are in " + WHOLE)
    return points


def with_load(arguments: argparse.Namespace, combination: Combination) -> argparse.Namespace:
    """The options of `bench serve` with those of a combination; ConfigError names what is none of them."""
    parser = argparse.ArgumentParser(allow_abbrev=False, exit_on_error=False, add_help=False)
    options.add_prompts(parser)
    options.add_load(parser)
    options.add_request(parser)
    try:
        found, unknown = parser.parse_known_args(combination.words, copy.copy(arguments))
    except argparse.ArgumentError as error:
        raise ConfigError(f"--bench-params: {error}") from None
    if unknown:
        raise ConfigError(f"--bench-params: {unknown[0]}: no option of `actorserve bench serve` for prompts or load")
    wanted(found)
    options.check_load(found, "--bench-params: ")
    return found


def _of_server(
    arguments: argparse.Namespace, server: Combination, loads: Loads, folder: Path, console: Console
) -> Iterator[tuple[int, list[Values]]]:
    """The points of one server by the number of their load. It is started only if some of them are not kept."""
    words = [*([arguments.model] if arguments.model else []), *arguments.engine, *server.words]
    missing: dict[int, Path] = {}
    for place, (one, given) in enumerate(loads):
        path = folder / f"{digest(words, one, given)}.json"
        if (kept := _kept(path)) is None:
            missing[place] = path
        else:
            yield place, kept
    if not missing:
        return
    console.print(f"measuring {server.name}: {len(missing)} of {len(loads)} loads", markup=False)
    try:
        with _running(arguments, words) as (base_url, pid):
            for place, path in missing.items():
                points = _points(loads[place][1], server, loads[place][0], base_url, pid)
                yield place, points
                if not failed(points):  # else it is measured again by the next run
                    _keep(path, points)
    except ServerError as error:
        console.print(f"not measured: {server.name}: {error}", markup=False)
        yield len(loads), [{"name": server.name, "engine": shown(server.words), "runs": [], "error": str(error)}]


@contextlib.contextmanager
def _running(arguments: argparse.Namespace, words: list[str]) -> Iterator[tuple[str, int | None]]:
    """The address of the server that is measured, and the process of one that was started for it."""
    if arguments.base_url:
        yield address_of("--base-url", arguments.base_url), None
        return
    with StartedServer(words, arguments.ready_timeout, tls=client_tls(arguments, own=True)) as started:
        yield started.base_url, started.pid


def _points(
    given: argparse.Namespace, server: Combination, load: Combination, base_url: str, pid: int | None
) -> list[Values]:
    bench = bench_of(given, base_url, pid, client_tls(given, own=pid is not None))
    name = "; ".join(one.name for one in (server, load) if one.given) or "as it is"
    about = {"engine": shown(server.words), "load": load.words}
    return [point | {"name": f"{name} ({point['name']})", **about} for point in sweep(bench, given)]


def digest(words: Sequence[str], load: Combination, given: argparse.Namespace) -> str:
    """The name of a point: whatever would make another one of it."""
    text = json.dumps([list(words), load.words, [getattr(given, name) for name in COUNT]])
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _kept(path: Path) -> list[Values] | None:
    """What was measured before; what a death has torn is measured again."""
    try:
        found: list[Values] = load(str(path))["points"]
    except ConfigError:
        return None
    return found


def _keep(path: Path, points: list[Values]) -> None:
    """Whole or not at all."""
    beside = path.with_suffix(".writing")
    save(beside, document("sweep", {}, points))
    try:
        os.replace(beside, path)
    except OSError as error:
        raise UnwrittenError(f"{path} cannot be written: {error.strerror}") from None


def shown(words: Sequence[str]) -> list[str]:
    """Options of a server, without keys: an option takes all words up to the next."""
    found: list[str] = []
    hidden = False
    for word in words:
        if is_option(word):
            hidden = "-key" in word.replace("_", "-").partition("=")[0]
        if not hidden:
            found.append(word)
    return found


def failed(points: Sequence[Values]) -> bool:
    """Whether any request failed, or any server."""
    return any("error" in one or any(run["failed"] for run in one["runs"]) for one in points)


def _show(console: Console, points: Sequence[Values]) -> None:
    """Those of the frontier are marked: nothing else has more throughput at as many tokens a second for one user."""
    table = Table(title="bench sweep; *: nothing else is better in both", title_justify="left")
    table.add_column("")
    table.add_column("point")
    for title in ("output tok/s", "tok/s a user", "requests/s", "TTFT p99 ms", "TPOT p99 ms"):
        table.add_column(title, justify="right")
    best = {id(point) for point in frontier(points)}
    for point in points:
        rates = mean_of(point, "output_throughput"), per_user(point), mean_of(point, "request_throughput")
        latency = (mean_of(point, "latency_ms", name, "p99") for name in ("ttft", "tpot"))
        table.add_row("*" if id(point) in best else "", point["name"], *map(number, (*rates, *latency)))
    console.print(table)
