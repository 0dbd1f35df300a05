"""/metrics, /ready, /health and /load of a running server: numbers that are known beforehand, and deaths in between."""

from __future__ import annotations

import json
import os
import re
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2 as httpx
import psutil
import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from actorserve.actors.frontend.observability.key_metrics import of_keys
from actorserve.actors.telemetry.metrics import (
    BATCHER_METRICS,
    HERALD_METRICS,
    HTTP2_METRICS,
    MEDIA_METRICS,
    PORTER_METRICS,
    TOOLS_METRICS,
)
from tests.support.client import http_client, metrics_at_rest
from tests.support.selection import slow
from tests.support.server import Server, stopped
from tests.support.until import PAUSE_S, until

DASHBOARD = Path(__file__).resolve().parents[3] / "tools" / "grafana" / "actorserve.json"
NAME = re.compile(r"\b(?:vllm|actorserve):[a-z_0-9]+")
TOKENS = 12
LONG = 700  # of what is to run on behind a scrape
WAIT_S = 30.0
SERVER_OPTIONS = ("--threads", "1", "--frontends", "2", "--hang-timeout", "20")


@pytest.fixture
def client(server: Server) -> Iterator[httpx.Client]:
    with http_client(server) as made:
        yield made


def complete(client: httpx.Client, tokens: int = TOKENS, stream: bool = False, **more: object) -> int:
    """Generated tokens of a request, as its usage says."""
    body = {"model": "actorserve-demo", "prompt": "Once upon", "max_tokens": tokens, "ignore_eos": True, **more}
    options = {"stream": True, "stream_options": {"include_usage": True}} if stream else {}
    response = client.post("/v1/completions", json=body | options)
    response.raise_for_status()
    *_, last, _, _ = response.text.split("\n\n") if stream else ("data: " + response.text, "", "")
    return int(json.loads(last.removeprefix("data: "))["usage"]["completion_tokens"])


class Scrape:
    """One look at /metrics; samples by name and labels."""

    def __init__(self, client: httpx.Client) -> None:
        response = client.get("/metrics")
        response.raise_for_status()
        families = list(parse_text(response.text))
        self.families = {family.name: family for family in families}
        self.samples = {
            (sample.name, *sorted(sample.labels.items())): sample.value
            for family in families
            for sample in family.samples
        }

    def sum(self, name: str, **labels: str) -> float:
        """Of all samples that have these labels; there must be one."""
        found = [
            value
            for (known, *pairs), value in self.samples.items()
            if known == name and labels.items() <= dict(pairs).items()  # type: ignore[arg-type]
        ]
        assert found, f"there is no {name} {labels}"
        return sum(found)

    def counts(self) -> dict[tuple[Any, ...], float]:
        """All that may only rise."""
        counters = {
            sample.name
            for family in self.families.values()
            if family.type in ("counter", "histogram")
            for sample in family.samples
        }
        return {key: value for key, value in self.samples.items() if key[0] in counters}


def settled(client: httpx.Client, ended: float) -> Scrape:
    """A scrape in which so many sequences have ended: the scheduler counts at the end of its turn."""
    deadline = time.monotonic() + WAIT_S
    while (seen := Scrape(client)).sum("vllm:request_success_total") < ended:
        assert time.monotonic() < deadline, f"{seen.sum('vllm:request_success_total')} of {ended} have ended"
        time.sleep(PAUSE_S)
    return seen


def ask_ready(client: httpx.Client, wanted: int) -> list[str]:
    """What /ready gives as reasons, once its status is as wanted."""
    deadline = time.monotonic() + WAIT_S
    while (response := client.get("/ready")).status_code != wanted:
        assert time.monotonic() < deadline, response.text
        time.sleep(PAUSE_S)
    answer = response.json()
    assert answer["status"] == ("ready" if wanted == 200 else "not ready")
    return list(answer.get("waiting_for", []))


def test_known_requests(client: httpx.Client) -> None:
    metrics_at_rest(client)  # what other tests have asked for is counted
    before = Scrape(client)
    ended = before.sum("vllm:request_success_total")
    for number in range(3):
        complete(client, stream=number == 1)
    complete(client, n=2)
    complete(client, tokens=1)
    with client.stream(
        "POST", "/v1/completions", json={"prompt": "Once", "max_tokens": 1500, "ignore_eos": True, "stream": True}
    ) as response:
        next(response.iter_lines())
    after = settled(client, ended + 7)

    def grown(name: str, **labels: str) -> float:
        return after.sum(name, **labels) - before.sum(name, **labels)

    labels = {"model_name": "actorserve-demo", "engine": "0"}
    assert grown("vllm:request_success_total", finished_reason="length", **labels) == 6
    assert grown("vllm:request_success_total", finished_reason="abort") == 1
    assert grown("vllm:request_success_total", finished_reason="stop") == 0
    aborted = grown("vllm:request_generation_tokens_sum") - (5 * TOKENS + 1)
    assert 0 < aborted < 1500
    assert grown("vllm:generation_tokens_total") == 5 * TOKENS + 1 + aborted
    assert grown("vllm:inter_token_latency_seconds_count") == 5 * (TOKENS - 1) + aborted - 1
    assert grown("vllm:time_to_first_token_seconds_count", **labels) == 7
    assert grown("vllm:e2e_request_latency_seconds_count") == 6, "nobody waited for the end of the aborted one"
    for name in ("queue", "prefill", "decode", "inference"):
        assert grown(f"vllm:request_{name}_time_seconds_count") == 7
    assert grown("vllm:request_params_max_tokens_sum") == 5 * TOKENS + 1 + 1500
    assert grown("vllm:request_params_n_count") == 5, "prompts, not choices"
    assert grown("vllm:request_params_n_sum") == 6 == grown("vllm:request_params_n_bucket", le="2.0") + 1
    assert grown("vllm:request_max_num_generation_tokens_sum") == 4 * TOKENS + 1
    computed = grown("vllm:prompt_tokens_total") - grown("vllm:prompt_tokens_cached_total")
    assert grown("vllm:request_prefill_kv_computed_tokens_sum") == computed > 0
    assert grown("vllm:request_num_preemptions_sum") == 0 and grown("vllm:request_num_preemptions_count") == 7
    assert grown("vllm:request_prompt_tokens_count") == grown("vllm:request_generation_tokens_count") == 7
    assert grown("vllm:prompt_tokens_total") == grown("vllm:request_prompt_tokens_sum")
    assert grown("vllm:iteration_tokens_total_sum") >= 5 * TOKENS
    assert grown("actorserve:hop_latency_seconds_count", source="frontend", target="renderer") == 7
    assert grown("actorserve:hop_latency_seconds_count", source="scheduler") == 2, "of those that are streamed"
    assert after.sum("vllm:cache_config_info", block_size="32", enable_prefix_caching="True") == 1
    (cache,) = after.families["vllm:cache_config_info"].samples
    tokens = int(cache.labels["num_gpu_blocks"]) * 32
    assert int(cache.labels["kv_cache_size_tokens"]) == tokens > 0
    longest = client.get("/v1/models").json()["data"][0]["max_model_len"]
    assert float(cache.labels["kv_cache_max_concurrency"]) == pytest.approx(tokens / longest, abs=0.01)
    assert after.sum("vllm:num_requests_waiting_by_reason", reason="capacity") == 0


@pytest.mark.parametrize("stream", [False, True])
def test_the_stages_of_one_request_fit_into_its_time(client: httpx.Client, stream: bool) -> None:
    metrics_at_rest(client)
    before = Scrape(client)
    complete(client, stream=stream)
    after = settled(client, before.sum("vllm:request_success_total") + 1)
    names = ["time_to_first_token", "e2e_request_latency", "request_queue_time", "request_prefill_time"]
    names += ["request_decode_time", "inter_token_latency"]
    sums = [after.sum(f"vllm:{name}_seconds_sum") - before.sum(f"vllm:{name}_seconds_sum") for name in names]
    first, end, queue, prefill, decode, between = sums
    assert 0 < queue + prefill < first < end and queue + prefill + decode < end
    assert between == pytest.approx(decode) and 0 < decode < end
    assert stream or first < end - decode, "the first token was there, though nobody saw it yet"


def test_openmetrics(client: httpx.Client) -> None:
    response = client.get("/metrics", headers={"Accept": "application/openmetrics-text; version=1.0.0"})
    assert response.headers["content-type"].startswith("application/openmetrics-text; version=1.0.0")
    parse: Callable[[str], Iterable[Metric]] = parse_openmetrics
    families = {family.name: family for family in parse(response.text)}
    assert (
        families["vllm:iteration_tokens_total"].type == families["actorserve:hop_latency_seconds"].type == "histogram"
    )
    assert families["vllm:request_success"].type == "counter"


def test_every_actor_is_told_of(server: Server, client: httpx.Client) -> None:
    seen = Scrape(client)
    for name in ("supervisor", *server.pids()):
        assert (
            seen.sum("actorserve:actor_up", actor=name) == 1
            and seen.sum("actorserve:actor_restarts_total", actor=name) == 0
        )
        assert seen.sum("actorserve:mailbox_depth", actor=name) >= 0
    assert seen.sum("actorserve:actor_heartbeat_age_seconds", actor="scheduler") < WAIT_S
    with stopped(server, "renderer-0"), ThreadPoolExecutor(1) as pool:
        waits = pool.submit(complete, http_client(server))
        deadline = time.monotonic() + WAIT_S
        while not (seen := Scrape(client)).sum("actorserve:mailbox_depth", actor="renderer-0"):
            assert time.monotonic() < deadline
        deadline = time.monotonic() + WAIT_S
        assert seen.sum("actorserve:actor_up", actor="renderer-0") == 0
        assert seen.sum("actorserve:mailbox_depth", actor="renderer-0") == 1
        assert client.get("/load").json() == {"server_load": 1}
        first, then = (
            Scrape(client).sum("actorserve:mailbox_oldest_message_age_seconds", actor="renderer-0") for _ in "ab"
        )
        assert 0 < first < then
        os.kill(server.pids()["renderer-0"], signal.SIGCONT)
        assert waits.result() == TOKENS
    while client.get("/load").json() != {"server_load": 0}:  # it is counted until the frontend has let go of it
        assert time.monotonic() < deadline


@pytest.mark.parametrize("name", ["scheduler", *slow("worker", "frontend-0")])
def test_nothing_that_is_counted_falls_at_a_death(name: str, server: Server, client: httpx.Client) -> None:
    complete(client)
    metrics_at_rest(client)
    before = Scrape(client)
    generated = before.sum("vllm:generation_tokens_total")
    with ThreadPoolExecutor(4) as pool:
        answers = [pool.submit(complete, client, LONG, stream) for stream in (False, True, False, True)]
        until(lambda: Scrape(client).sum("vllm:num_requests_running") == 4)
        with stopped(server, "worker"):  # none ends meanwhile
            middle = Scrape(client)
            server.replace(name)
        assert [answer.result() for answer in answers] == [LONG] * 4
    after = settled(client, before.sum("vllm:request_success_total") + 4)
    last = before.counts()
    for now in (middle.counts(), after.counts()):
        assert now.keys() >= last.keys()
        assert not {key: (value, now[key]) for key, value in last.items() if now[key] < value}
        last = now
    assert after.sum("vllm:generation_tokens_total") - generated >= 4 * LONG - 8
    assert (
        after.sum("vllm:time_to_first_token_seconds_count") - before.sum("vllm:time_to_first_token_seconds_count") == 4
    )
    assert after.sum("actorserve:actor_restarts_total", actor=name) == 1
    if name in ("scheduler", "worker"):
        recovered = (seen.sum("actorserve:requests_recovered_total", died=name) for seen in (after, before))
        assert next(recovered) - next(recovered) == 4


@pytest.mark.parametrize("name", ["worker", "frontend-1", *slow("scheduler", "renderer-0", "detokenizer-0")])
def test_ready_names_who_was_stopped(name: str, server: Server) -> None:
    with http_client(server) as client:
        ask_ready(client, 200)
        other = f"frontend-{1 - frontend_of(client, server)}"
        name = other if name.startswith("frontend") else name
        with stopped(server, name):
            assert ask_ready(client, 503) == [f"{name}: stopped by a signal"]
            assert client.get("/health").status_code == 200
        ask_ready(client, 200)


def frontend_of(client: httpx.Client, server: Server) -> int:
    """Which frontend serves this client's connection."""
    port = client.get("/health").extensions["network_stream"].get_extra_info("client_addr")[1]
    for name, pid in server.pids().items():
        if name.startswith("frontend") and any(
            c.raddr and c.raddr.port == port for c in psutil.Process(pid).net_connections()
        ):
            return int(name.removeprefix("frontend-"))
    raise AssertionError(f"no frontend has the connection from port {port}")


def test_health_while_nobody_works(server: Server, client: httpx.Client) -> None:
    with stopped(server, "scheduler"), stopped(server, "renderer-0"), stopped(server, "worker"):
        reasons = ask_ready(client, 503)
        assert reasons == [f"{name}: stopped by a signal" for name in ("worker", "scheduler", "renderer-0")]
        for _ in range(20):
            assert client.get("/health").json() == {"status": "ok"}
    ask_ready(client, 200)
    complete(client)


def test_the_dashboard_charts_what_is_exported(client: httpx.Client) -> None:
    seen = Scrape(client)
    exported = {key[0] for key in seen.samples}
    dashboard = json.loads(DASHBOARD.read_text())
    panels = [panel for panel in dashboard["panels"] if panel["type"] != "row"]
    charted = {name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])}
    charted |= {name for note in dashboard["annotations"]["list"] for name in NAME.findall(note.get("expr", ""))}
    seeing = {
        f"{metric.name}{'_total' * (metric.type == 'counter')}"
        for metric in (*MEDIA_METRICS, *PORTER_METRICS, *HERALD_METRICS, *TOOLS_METRICS, *HTTP2_METRICS)
    }  # where there is media, a porter, a herald, a tools actor or --http2-port
    seeing |= {f"{metric.name}{'_total' * (metric.type == 'counter')}" for metric in BATCHER_METRICS}  # or --files-dir
    seeing |= {f"{family.name}{'_total' * (family.kind == 'counter')}" for family in of_keys([])}  # or a --key-file
    seeing |= {"actorserve:adapters", "actorserve:adapter_requests"}  # or --enable-lora
    assert charted - seeing <= exported and seeing <= charted, (charted ^ seeing) - exported
    known = {
        sample.name for family in seen.families.values() for sample in family.samples[:1] if family.type != "histogram"
    }
    known |= {family.name + "_bucket" for family in seen.families.values() if family.type == "histogram"}
    known = {name for name in known if not name.startswith(("llamacpp:", "sglang:"))}  # what others chart
    assert known <= charted, f"nothing shows {known - charted}"
    assert dashboard["schemaVersion"] >= 39 and len({panel["id"] for panel in dashboard["panels"]}) == len(
        dashboard["panels"]
    )
    for panel in panels:
        area = panel["gridPos"]
        assert area["x"] + area["w"] <= 24 and panel["datasource"]["uid"] == "${datasource}" and panel["title"]


def test_panels_of_the_dashboard_stand_side_by_side() -> None:
    """Each has a number and a place of its own: Grafana drops or pushes away what has another's."""
    panels = json.loads(DASHBOARD.read_text())["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: dict[tuple[int, int], str] = {}
    for panel in panels:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24, panel["title"]
        for x in range(place["x"], place["x"] + place["w"]):
            for y in range(place["y"], place["y"] + place["h"]):
                assert taken.setdefault((x, y), panel["title"]) == panel["title"]
