"""The options of `actorserve bench`, by the names that users know, and what they come to."""

from __future__ import annotations

import argparse
import json
import math
import os
from typing import Any

from ..options.config import ConfigError
from .client_tls import add_client_certificate
from .target import check_headers

DATASETS = ("random", "fixed", "shared-prefix", "file")  # see bench/load/prompts.py, which a parser need not import
ARRIVALS = ("gamma", "poisson", "fixed")
LIMITED = ("ttft", "tpot", "e2el")
METRICS = ("ttft", "tpot", "itl", "icl", "e2el")
KEY_HELP = "also from ACTORSERVE_API_KEY, or with --base-url from OPENAI_API_KEY"


def add_target(parser: argparse.ArgumentParser) -> None:
    """Which server, and how it is spoken to."""
    group = parser.add_argument_group("server")
    group.add_argument("--base-url", "--url", metavar="URL", help="one that runs; else one is started and stopped")
    group.add_argument("--model", help="its model, or the one to start (the packaged one)")
    add_request(group)
    group.add_argument("--api-key", help=KEY_HELP)
    group.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="more headers")
    group.add_argument("--request-timeout", type=float, default=3600.0, metavar="SECONDS")
    group.add_argument("--ready-timeout", type=float, default=600.0, metavar="SECONDS")
    add_client_certificate(group)
    group.add_argument("--server-pid", type=int, help="whose CPU and memory to take, with those of its children")
    group.add_argument("--tokenizer", metavar="FOLDER", help="to count prompts with; otherwise the server's /tokenize")
    group.add_argument("--seed", type=int, default=0)
    group.add_argument("--disable-tqdm", action="store_true", help="no progress bar")
    group.add_argument("engine", nargs="*", metavar="-- OPTION", help="of the server that is started")


def add_request(group: argparse._ActionsContainer) -> None:
    """What all requests have in common."""
    group.add_argument("--backend", choices=("openai", "openai-chat"), default="openai", help="completions, or chat")
    group.add_argument("--endpoint", default="", help="the path, where it is another one")
    group.add_argument("--extra-body", default="{}", metavar="JSON", help="more fields of each request")


def add_sweep(parser: argparse.ArgumentParser) -> None:
    """Which points there are, and where they are kept."""
    group = parser.add_argument_group("sweep")
    group.add_argument("--serve-params", metavar="FILE", help="YAML or JSON: the server's options, by their names")
    group.add_argument("--bench-params", metavar="FILE", help="the same of prompts and load, as `bench serve` has them")
    group.add_argument("--num-runs", type=int, default=3, dest="repeat", metavar="N", help="of each point (3)")
    group.add_argument(
        "--output-dir", "-o", default="sweep", metavar="FOLDER", help="what is there is not measured again"
    )
    group.add_argument("--metric-percentiles", default="50,90,99")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="limits, such as ttft:200 tpot:50")
    parser.set_defaults(save_detailed=False)


def add_mm(parser: argparse.ArgumentParser) -> None:
    """Which server, and which pictures."""
    parser.add_argument("--base-url", "--url", metavar="URL", help="one that runs; else one is started and stopped")
    parser.add_argument("--model", help="the one to start")
    parser.add_argument("--api-key", help=KEY_HELP)
    parser.add_argument("--admin-api-key", metavar="KEY", help="of the server: tells processor and encoder apart")
    parser.add_argument("--header", action="append", default=[], metavar="NAME=VALUE", help="more headers")
    add_client_certificate(parser)
    parser.add_argument("--image-sizes", default="224x224,640x480,1280x960", metavar="WxH,…", help="of pictures")
    parser.add_argument("--num-prompts", type=int, default=8, metavar="N", help="pictures of each size (8)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--request-timeout", type=float, default=3600.0, metavar="SECONDS")
    parser.add_argument("--ready-timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--output-json", metavar="FILE", help="write all figures as JSON")
    parser.add_argument("engine", nargs="*", metavar="-- OPTION", help="of the server that is started")


def add_startup(parser: argparse.ArgumentParser) -> None:
    """Which server is started, and how often."""
    parser.add_argument("--model", help="the one to serve (the packaged one)")
    parser.add_argument("--num-iters-cold", type=int, default=3, metavar="N", help="starts with empty caches")
    parser.add_argument(
        "--num-iters-warmup", type=int, default=1, metavar="N", help="starts that fill caches, uncounted"
    )
    add_client_certificate(parser)
    parser.add_argument("--num-iters-warm", type=int, default=3, metavar="N", help="starts with caches that are full")
    parser.add_argument("--ready-timeout", type=float, default=600.0, metavar="SECONDS")
    parser.add_argument("--output-json", metavar="FILE", help="write all figures as JSON")
    parser.add_argument("engine", nargs="*", metavar="-- OPTION", help="of the server that is started")


def add_results(parser: argparse.ArgumentParser) -> None:
    """What is reported, and where it is kept."""
    group = parser.add_argument_group("results")
    group.add_argument("--repeat", type=int, default=1, metavar="N", help="so that `compare` can tell the noise")
    group.add_argument("--percentile-metrics", default="ttft,tpot,itl,e2el", help="of " + ",".join(METRICS))
    group.add_argument("--metric-percentiles", default="50,90,99")
    group.add_argument("--goodput", nargs="+", default=[], metavar="NAME:MS", help="limits, such as ttft:200 tpot:50")
    group.add_argument("--save-result", action="store_true", help="write the results as JSON")
    group.add_argument("--save-detailed", action="store_true", help="and each request's figures")
    group.add_argument("--result-dir", default=".")
    group.add_argument("--result-filename", help="writes the results, too")


def add_prompts(parser: argparse.ArgumentParser) -> None:
    """What is asked."""
    group = parser.add_argument_group("prompts")
    names = ("--dataset", "--dataset-name")
    group.add_argument(*names, choices=(*DATASETS, "custom", "sharegpt"), default="random")
    group.add_argument("--dataset-path", default="", help="JSON Lines with prompt or messages, or ShareGPT's form")
    group.add_argument("--num-prompts", type=int, default=100)
    group.add_argument("--random-input-len", "--input-len", type=int, default=256, metavar="TOKENS")
    group.add_argument("--random-output-len", "--output-len", type=int, default=None, metavar="TOKENS")
    group.add_argument("--random-range-ratio", type=float, default=0.0, help="lengths within (1 - r, 1 + r) of these")
    group.add_argument("--prefix-len", "--random-prefix-len", type=int, default=0, metavar="TOKENS")
    group.add_argument("--num-prefixes", type=int, default=1)
    group.add_argument("--ignore-eos", action=argparse.BooleanOptionalAction, help="the default unless from a file")


def add_load(parser: argparse.ArgumentParser) -> None:
    """When it is asked."""
    group = parser.add_argument_group("load")
    group.add_argument("--request-rate", default="inf", help="requests a second, or several to try: 1,2,4,inf")
    group.add_argument("--arrivals", choices=ARRIVALS, default="gamma")
    group.add_argument("--burstiness", type=float, default=1.0, help="shape of the gamma; 1 is Poisson")
    group.add_argument("--max-concurrency", default="", help="requests at once, or several to try: 1,8,64")
    group.add_argument("--num-warmups", type=int, default=1, help="requests before each run that are not counted")


def switched(name: str, on: bool) -> str:
    """The option of a server that turns on or off what `--name` turns on: it may be on by default."""
    if on:
        return name
    return f"--{name.removeprefix('--no-')}" if name.startswith("--no-") else f"--no-{name.removeprefix('--')}"


def limits_of(words: list[str]) -> dict[str, float]:
    """`ttft:200 tpot:50`."""
    found = {}
    for word in words:
        name, _, value = word.partition(":")
        if name not in LIMITED:
            raise ConfigError(f"--goodput {word}: one of {', '.join(LIMITED)}, with its limit in ms behind a colon")
        found[name] = positive(value, f"--goodput {word}")
    return found


def numbers(text: str, name: str) -> list[float]:
    """`1,2,inf`."""
    return [positive(one, name) for one in text.split(",") if one.strip()]


def check_load(arguments: argparse.Namespace, prefix: str = "--") -> None:
    """ConfigError if what `add_load` adds cannot be; `prefix` stands before its name."""
    for name in ("request_rate", "max_concurrency"):
        numbers(getattr(arguments, name, ""), f"{prefix}{name.replace('_', '-')}")
    if not 0 < getattr(arguments, "burstiness", 1.0) < math.inf:
        raise ConfigError(
            f"{prefix}burstiness: {arguments.burstiness} is no number over 0, and without end it is fixed"
        )


def positive(text: str, name: str) -> float:
    """A number over 0; inf is one."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not value > 0:
        raise ConfigError(f"{name}: {text!r} is no number over 0")
    return value


def percentiles_of(text: str) -> list[float]:
    """Those asked for and those that tables show."""
    found = numbers(text, "--metric-percentiles")
    if any(one > 100 for one in found):
        raise ConfigError("--metric-percentiles: at most 100")
    return sorted({50.0, 90.0, 99.0, *found})


def metrics_of(text: str) -> list[str]:
    """Of `--percentile-metrics`."""
    names = [one for one in text.split(",") if one]
    if unknown := [one for one in names if one not in METRICS]:
        raise ConfigError(f"--percentile-metrics: {unknown[0]}: one of {', '.join(METRICS)}")
    return names


def headers_of(arguments: argparse.Namespace) -> dict[str, str]:
    """The key, and what `--header` says."""
    found = {}
    others = os.environ.get("OPENAI_API_KEY") if arguments.base_url else None  # no business of a server of ours
    if key := arguments.api_key or os.environ.get("ACTORSERVE_API_KEY") or others:
        found["Authorization"] = f"Bearer {key}"
    for header in arguments.header:
        name, equals, value = header.partition("=")
        if not equals:
            raise ConfigError(f"--header {header}: NAME=VALUE")
        found[name] = value
    check_headers(found, "--header, or the key")
    return found


def extra_body_of(arguments: argparse.Namespace) -> dict[str, Any]:
    """What `--extra-body` says."""
    try:
        found = json.loads(arguments.extra_body)
    except ValueError as error:
        raise ConfigError(f"--extra-body: {error}") from None
    if not isinstance(found, dict):
        raise ConfigError("--extra-body: a JSON object")
    return found
