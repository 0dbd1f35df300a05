"""Runs of one server, from options to results: what `serve`, `latency`, `throughput` and each point of `tune` share."""

from __future__ import annotations

import argparse
import contextlib
import itertools
import math
import secrets
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import uvloop
from tqdm import tqdm

from ..options.config import ConfigError
from . import options, processes
from .client_tls import ClientTls, client_tls
from .load.arrivals import arrivals
from .load.client import Target
from .load.prompts import DatasetError, Prompt, PromptOptions, Source, prompt_source
from .load.record import RequestRecord
from .load.session import Run, counter, first_model, measured, probe
from .results.metrics import figures
from .server import StartedServer, wait_ready
from .target import address_of


@dataclass(frozen=True, slots=True)
class Bench:
    """A target that answers, and how its requests are counted."""

    target: Target
    pid: int | None
    counted_by: str
    source: Source
    runs: Iterator[int]

    def draw(self, many: int) -> tuple[Target, list[Prompt]]:
        """So many for one run: the server knows no prefix of theirs, whatever it was asked before. Those of a file stay
        as they are, and have a salt alone.
        """
        run = next(self.runs)
        salt = f"{self.target.salt}-{run}" if self.target.salt else ""
        return replace(self.target, salt=salt), self.source(many, run)


@contextlib.contextmanager
def opened(arguments: argparse.Namespace, engine: Sequence[str] | None = None) -> Iterator[Bench]:
    """The server that is measured, ready and tried once; one that was started here ends here."""
    given = list(arguments.engine if engine is None else engine)
    if arguments.base_url:
        if given:
            raise ConfigError(f"{given[0]}: --base-url names a server that runs already")
        base_url = address_of("--base-url", arguments.base_url)
        tls = client_tls(arguments, own=False)
        wait_ready(base_url, arguments.ready_timeout, tls, options.headers_of(arguments))
        yield bench_of(arguments, base_url, arguments.server_pid or processes.listener(base_url), tls)
        return
    model = [arguments.model] if arguments.model else []
    tls = client_tls(arguments, own=True)
    with StartedServer([*model, *given], arguments.ready_timeout, tls=tls) as server:
        yield bench_of(arguments, server.base_url, server.pid, tls)


def bench_of(arguments: argparse.Namespace, base_url: str, pid: int | None, tls: ClientTls) -> Bench:
    """A server that is ready, tried once."""
    headers = options.headers_of(arguments)
    given = None if tls.own else arguments.model
    ignore = arguments.ignore_eos
    target = Target(
        base_url=base_url,
        model=given or first_model(base_url, headers, tls),
        chat=arguments.backend == "openai-chat",
        endpoint=arguments.endpoint,
        headers=headers,
        extra_body=options.extra_body_of(arguments),
        ignore_eos=arguments.dataset in ("random", "fixed", "shared-prefix") if ignore is None else ignore,
        timeout_s=arguments.request_timeout,
        salt=secrets.token_hex(8),
        tls=tls,
    )
    count, counted_by = counter(target, arguments.tokenizer)
    try:
        source = prompt_source(wanted(arguments), count)
    except DatasetError as error:
        raise ConfigError(f"--dataset-path: {error}") from None
    bench = Bench(target, pid, counted_by, source, itertools.count())
    salted, prompts = bench.draw(1)
    found = uvloop.run(probe(salted, prompts[0]))
    return replace(bench, target=replace(found, salt=target.salt if found.salt else ""))


def wanted(arguments: argparse.Namespace) -> PromptOptions:
    """The prompts' options."""
    dataset = {"custom": "file", "sharegpt": "file"}.get(arguments.dataset, arguments.dataset)
    if dataset == "file" and not arguments.dataset_path:
        raise ConfigError("--dataset file: --dataset-path says which")
    if arguments.num_prompts < 1:
        raise ConfigError("--num-prompts: at least 1")
    if not 0 <= arguments.random_range_ratio < 1:
        raise ConfigError("--random-range-ratio: at least 0 and under 1")
    for name, least in (("random_input_len", 1), ("random_output_len", 1), ("prefix_len", 0), ("num_prefixes", 1)):
        if (value := getattr(arguments, name)) is not None and value < least:
            raise ConfigError(f"--{name.replace('_', '-')}: at least {least}")
    output = arguments.random_output_len
    return PromptOptions(
        dataset=dataset,
        path=arguments.dataset_path,
        count=arguments.num_prompts,
        input_len=arguments.random_input_len,
        output_len=128 if output is None and dataset != "file" else output,
        range_ratio=arguments.random_range_ratio,
        prefix_len=arguments.prefix_len,
        prefixes=arguments.num_prefixes,
        seed=arguments.seed,
    )


def run_once(bench: Bench, arguments: argparse.Namespace, rate: float, limit: int | None) -> dict[str, Any]:
    """One run at one load, behind requests that warm up."""
    if warm_ups := arguments.num_warmups:
        target, warm = bench.draw(warm_ups)
        measured(target, warm, [0.0] * len(warm), limit)
    target, prompts = bench.draw(arguments.num_prompts)
    offsets = arrivals(len(prompts), rate, arguments.burstiness, arguments.arrivals, arguments.seed)
    with tqdm(total=len(prompts), disable=arguments.disable_tqdm or None, file=sys.stderr, leave=False) as bar:
        run = measured(target, prompts, offsets, limit, pid=bench.pid, done=lambda _: bar.update() and None)
    return result(run, arguments, bench)


def result(run: Run, arguments: argparse.Namespace, bench: Bench) -> dict[str, Any]:
    """A run as the JSON has it."""
    limits = options.limits_of(arguments.goodput)
    found = figures(run.records, run.duration_s, limits, options.percentiles_of(arguments.metric_percentiles))
    found |= run.usage
    found["repeated_prompts"] = bool(arguments.dataset_path) and not bench.target.salt
    if arguments.save_detailed:
        found["detail"] = [detail(record) for record in run.records]
    return found


def detail(record: RequestRecord) -> dict[str, Any]:
    """One request."""
    return {
        "prompt_tokens": record.prompt_tokens,
        "output_tokens": record.output_tokens,
        "ttft_ms": record.ttft_ms,
        "tpot_ms": record.tpot_ms,
        "e2el_ms": record.e2el_ms,
        "icl_ms": record.icl_ms(),
        "error": record.error,
    }


def sweep(bench: Bench, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """A point for each request rate and concurrency, each with its repetitions."""
    rates = options.numbers(arguments.request_rate, "--request-rate") or [math.inf]
    many = options.numbers(arguments.max_concurrency, "--max-concurrency")
    points = []
    for rate in rates:
        for limit in [None if math.isinf(one) else max(1, int(one)) for one in many] or [None]:
            runs = [run_once(bench, arguments, rate, limit) for _ in range(arguments.repeat)]
            points.append(point(f"rate {rate:g}" + (f", {limit} at once" if limit else ""), rate, limit, runs))
    return points


def point(name: str, rate: float, limit: int | None, runs: list[dict[str, Any]]) -> dict[str, Any]:
    """What was asked, and what came of it each time."""
    return {"name": name, "request_rate": None if math.isinf(rate) else rate, "max_concurrency": limit, "runs": runs}


def iterate(bench: Bench, arguments: argparse.Namespace) -> list[dict[str, Any]]:
    """`latency`: batches of the same lengths, each when the one before has ended; all requests are one run."""

    def batch(pid: int | None = None) -> Run:
        target, prompts = bench.draw(arguments.batch_size)
        return measured(target, prompts, [0.0] * len(prompts), pid=pid)

    for _ in range(arguments.num_iters_warmup):
        batch()
    runs = []
    for _ in range(arguments.repeat):
        done = []
        for _ in tqdm(range(arguments.num_iters), disable=arguments.disable_tqdm or None, leave=False):
            done.append(batch(bench.pid))
        found = result(_joined(done), arguments, bench)
        found["batch_latency_ms"] = _batch_spread(done, arguments)
        runs.append(found)
    return [point(f"batch of {arguments.batch_size}", math.inf, arguments.batch_size, runs)]


def _batch_spread(runs: Sequence[Run], arguments: argparse.Namespace) -> dict[str, float] | None:
    from .results.metrics import spread

    return spread([run.duration_s * 1e3 for run in runs], options.percentiles_of(arguments.metric_percentiles))


def _joined(runs: Sequence[Run]) -> Run:
    """Several runs as one."""
    records = [record for run in runs for record in run.records]
    duration = sum(run.duration_s for run in runs)
    usage = dict(runs[-1].usage)
    for name in ("client_cpu_s", "server_cpu_s"):
        if name in usage:
            usage[name] = sum(run.usage[name] for run in runs if name in run.usage)
    tokens, chunks = sum(r.output_tokens for r in records), sum(len(r.chunks) for r in records)
    usage["client_share"] = usage["client_cpu_s"] / duration
    usage["client_us_a_chunk"] = usage["client_cpu_s"] / chunks * 1e6 if chunks else None
    if "server_cpu_s" in usage:
        usage["server_cpu_ms_a_token"] = usage["server_cpu_s"] / tokens * 1e3 if tokens else None
    return replace(runs[0], records=records, duration_s=duration, usage=usage)
