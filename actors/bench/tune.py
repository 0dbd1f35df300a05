"""The server's options that give the most goodput: a server is started for each point of a grid, and measured."""

from __future__ import annotations

import argparse
import itertools
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from msgspec import inspect
from rich.console import Console
from rich.table import Table

from ..options.command_line import OTHER_NAMES
from ..options.config import ConfigError
from ..options.fields import option_fields, plain_type
from ..options.other_servers import meaning_of
from ..options.parser import is_option
from .options import switched
from .results.report import mean_of, number
from .serve import opened, sweep
from .server import ServerError

Grid = dict[str, list[str]]
SWITCHED = {"true": True, "false": False}


def split_options(words: Sequence[str]) -> tuple[list[str], Grid]:
    """What is the same at all points, and what varies: numbers, switches and names of one of several, with commas. In
    other values a comma is a comma.
    """
    fixed: list[str] = []
    grid: Grid = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=") if is_option(word) else ("", "", "")
        apart = not equals and bool(rest) and not is_option(rest[0])
        given = rest[0] if apart else value
        if "," in given and _varies(name):
            grid[name] = given.split(",")
            rest = rest[apart:]
        else:
            fixed.append(word)
    return fixed, grid


def _varies(name: str) -> bool:
    """Is it an option of one value, that is no text?"""
    fields = option_fields()
    field = name.lstrip("-").replace("-", "_")
    if field not in fields:
        short = next((one for one, names in OTHER_NAMES.items() if name in names), "")
        meaning = meaning_of(name)
        field = short or (meaning.field if meaning is not None and meaning.fixed is None and not meaning.key else "")
    return field in fields and not isinstance(plain_type(fields[field].type), inspect.StrType | inspect.ListType)


def read_grid(path: str) -> Grid:
    """A YAML file: option: [values]."""
    try:
        found = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError(f"--grid {path}: {error}") from None
    if not isinstance(found, dict) or not all(isinstance(values, list) and values for values in found.values()):
        raise ConfigError(f"--grid {path}: options, each with a list of values")
    return {f"--{str(name).lstrip('-').replace('_', '-')}": [_word(one) for one in found[name]] for name in found}


def _word(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def combinations(grid: Grid) -> Iterator[list[str]]:
    """The options of each point. `true` is an option without a value, `false` is its opposite."""
    for values in itertools.product(*grid.values()):
        options: list[str] = []
        for name, value in zip(grid, values, strict=True):
            options += [name, value] if value not in SWITCHED else [switched(name, SWITCHED[value])]
        yield options


def tune(arguments: argparse.Namespace, console: Console) -> list[dict[str, Any]]:
    """Measure each point, show how they did, and say the command of the best."""
    fixed, grid = split_options(arguments.engine)
    if arguments.grid:
        grid |= read_grid(arguments.grid)
    if not grid:
        raise ConfigError("tune: nothing varies; say `-- --max-num-seqs 16,64`, or --grid FILE")
    if not arguments.goodput:
        raise ConfigError("tune: --goodput gives the limits, such as ttft:500 tpot:50")
    if arguments.base_url:
        raise ConfigError("--base-url: tune starts its servers itself")
    found: list[dict[str, Any]] = []
    for options in combinations(grid):
        console.print(f"measuring {shlex.join(options)}", markup=False)
        found += _measure(arguments, fixed, options, console)
    _show(console, found, [*([arguments.model] if arguments.model else []), *fixed])
    return found


def _measure(
    arguments: argparse.Namespace, fixed: list[str], options: list[str], console: Console
) -> list[dict[str, Any]]:
    """One server's points, a point for each load. One that does not start is said, and counts as none."""
    try:
        with opened(arguments, [*fixed, *options]) as bench:
            points = sweep(bench, arguments)
    except ServerError as error:
        console.print(f"not measured: {shlex.join(options)}: {error}", markup=False)
        return [{"name": shlex.join(options), "engine": options, "runs": [], "error": str(error)}]
    name = shlex.join(options)
    return [point | {"name": f"{name} ({point['name']})", "engine": options} for point in points]


def goodput(point: dict[str, Any]) -> float:
    """What a point is judged by; -1 for one that could not be measured."""
    mean = mean_of(point, "goodput")
    return -1.0 if mean is None else mean


def _show(console: Console, points: Sequence[dict[str, Any]], fixed: Sequence[str]) -> None:
    """The best first."""
    table = Table(title="bench tune", title_justify="left")
    table.add_column("options")
    for title in ("goodput/s", "requests/s", "output tok/s", "TTFT p99 ms", "TPOT p99 ms"):
        table.add_column(title, justify="right")
    ordered = sorted(points, key=goodput, reverse=True)
    for point in ordered:
        latency = (mean_of(point, "latency_ms", name, "p99") for name in ("ttft", "tpot"))
        rates = (mean_of(point, name) for name in ("goodput", "request_throughput", "output_throughput"))
        table.add_row(point["name"], *map(number, (*rates, *latency)))
    console.print(table)
    if goodput(ordered[0]) > 0:
        console.print(f"best: actorserve launch {shlex.join([*fixed, *ordered[0]['engine']])}", markup=False)
    else:
        console.print("none met the limits")
