"""`actorserve bench serve | latency | throughput | startup | tune | sweep | mm | compare | plot`."""

from __future__ import annotations

import argparse

from ..bench import options

DESCRIPTION = """Measure a server that speaks the OpenAI API, or one that is started for it.

Options behind `--` are those of the server to start:
actorserve bench serve --request-rate 1,2,4 -- --max-num-seqs 16"""
KINDS = {
    "serve": "requests that arrive over time: latencies, throughput and goodput at each load",
    "latency": "one batch after the other",
    "throughput": "all prompts at once",
    "startup": "how long a server takes to be ready, with empty caches and with full ones, and for what",
    "tune": "search the server's options for the highest goodput, as in --goodput ttft:500 -- --max-num-seqs 16,64",
    "sweep": "each of some servers under each of some loads, kept one by one, with the Pareto frontier",
    "mm": "what pictures cost before their prompt is computed: their processor, and their encoder",
    "compare": "two results beside each other",
    "plot": "latency against throughput",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """A parser for each kind."""
    kinds = parser.add_subparsers(dest="bench", required=True, metavar="KIND")
    made = {name: kinds.add_parser(name, help=text, allow_abbrev=False) for name, text in KINDS.items()}
    for name in ("serve", "latency", "throughput", "tune"):
        made[name].description = KINDS[name]
        options.add_target(made[name])
        options.add_prompts(made[name])
        options.add_results(made[name])
    for name in ("serve", "tune"):
        options.add_load(made[name])
    made["sweep"].description = KINDS["sweep"]
    options.add_target(made["sweep"])
    options.add_prompts(made["sweep"])
    options.add_load(made["sweep"])
    options.add_sweep(made["sweep"])
    made["startup"].description = KINDS["startup"]
    options.add_startup(made["startup"])
    made["mm"].description = KINDS["mm"]
    options.add_mm(made["mm"])
    made["tune"].add_argument("--grid", metavar="FILE", help="YAML: the server's options, each with a list of values")
    made["throughput"].add_argument("--num-warmups", type=int, default=1, help="requests that are not counted")
    made["throughput"].set_defaults(burstiness=1.0, arrivals="gamma")
    made["latency"].add_argument("--batch-size", type=int, default=8)
    made["latency"].add_argument("--num-iters", type=int, default=10)
    made["latency"].add_argument("--num-iters-warmup", type=int, default=2, help="batches that are not counted")
    made["compare"].add_argument("a", metavar="A.json")
    made["compare"].add_argument("b", metavar="B.json")
    made["plot"].add_argument("files", nargs="+", metavar="FILE")
    made["plot"].add_argument("-o", "--output", default="bench.svg", help="its ending says the format (bench.svg)")


def run(arguments: argparse.Namespace) -> int:
    """0 if all requests went well. What measures is imported here: it is no load for the other commands."""
    from ..bench.main import main

    return main(arguments)
