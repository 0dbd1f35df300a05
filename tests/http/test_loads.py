"""What engines have to do, as SGLang tells it, and in the header that load balancers ask for."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from actorserve.http.loads import EngineLoad
from tests.http.fakes import finish_all
from tests.http.serving import HI, Answer, Served

BUSY = EngineLoad(
    rank=0,
    running=3,
    waiting=2,
    waiting_tokens=50,
    held_tokens=250,
    most_tokens=1000,
    most_running=4,
    prefix_queries=200,
    prefix_hits=50,
    drafts=10,
    draft_tokens=40,
    accepted_tokens=20,
)
IDLE = EngineLoad(**dict.fromkeys(EngineLoad.__struct_fields__, 0) | {"rank": 1, "most_tokens": 1000})
CORE = {
    "dp_rank": 0,
    "num_running_reqs": 3,
    "num_waiting_reqs": 2,
    "num_waiting_uncached_tokens": 50,
    "num_used_tokens": 250,
    "num_total_tokens": 300,
    "max_total_num_tokens": 1000,
    "max_running_requests": 4,
    "token_usage": 0.25,
    "cache_hit_rate": 0.25,
    "utilization": 0.75,
}


@pytest.fixture
def loaded(served: Served) -> Served:
    served.engine.administration.loads = [BUSY, IDLE]
    return served


async def test_all_engines(loaded: Served) -> None:
    told = (await loaded.ask("GET", "/v1/loads")).json
    assert {"timestamp", "version", "accelerator", "loads"} < set(told) and told["num_accelerators"] == 2
    first, second = told["loads"]
    assert first == CORE | {"speculative": {"accept_length": 3.0, "accept_rate": 0.5}}
    assert second["dp_rank"] == 1 and second["utilization"] == 0 and "speculative" not in second


@pytest.mark.parametrize(("include", "has_drafts"), [("core", False), ("core,%20spec", True), ("queues", False)])
async def test_sections(loaded: Served, include: str, has_drafts: bool) -> None:
    (told,) = (await loaded.ask("GET", f"/v1/loads?dp_rank=0&include={include}")).json["loads"]
    assert ("speculative" in told) is has_drafts and CORE.items() <= told.items()


async def test_for_prometheus(loaded: Served) -> None:
    answer = await loaded.ask("GET", "/v1/loads?format=prometheus")
    assert answer.headers["content-type"].startswith("text/plain; version=0.0.4")
    lines = answer.body.decode().splitlines()
    assert lines[:3] == [
        "# TYPE sglang_num_running_reqs gauge",
        'sglang_num_running_reqs{dp_rank="0"} 3',
        'sglang_num_running_reqs{dp_rank="1"} 0',
    ]
    assert 'sglang_spec_accept_rate{dp_rank="0"} 0.5' in lines
    said = (await loaded.ask("GET", "/openapi.json")).json["paths"]["/v1/loads"]["get"]["responses"]["200"]["content"]
    assert set(said) == {"application/json", "text/plain"}


async def test_the_older_path(loaded: Served) -> None:
    first, _ = (await loaded.ask("GET", "/get_load")).json
    assert first.pop("ts_tic") > 0
    assert first == {"dp_rank": 0, "num_reqs": 5, "num_waiting_reqs": 2, "num_tokens": 300}


@pytest.mark.parametrize(
    ("query", "param"),
    [("dp_rank=7", "dp_rank"), ("dp_rank=x", "dp_rank"), ("include=all,x", "include"), ("format=x", "format")],
)
async def test_what_there_is_not(loaded: Served, query: str, param: str) -> None:
    answer = await loaded.ask("GET", f"/v1/loads?{query}")
    assert (answer.status, answer.error["param"]) == (400, param)


# --- the header ------------------------------------------------------------------------------------------------------


async def answered(served: Served, path: str, body: Any, **headers: str) -> Answer:
    client = await served.client()
    client.send("POST", path, body, **headers)
    finish_all(await served.job())
    return await client.answer()


@pytest.mark.parametrize("stream", [False, True])
async def test_who_asks_for_it_has_the_load_in_a_header(loaded: Served, stream: bool) -> None:
    body = {"messages": HI, "stream": stream}
    text = await answered(loaded, "/v1/chat/completions", body, Endpoint_Load_Metrics_Format="TEXT")
    told = "TEXT named_metrics.kv_cache_usage_perc=0.125, named_metrics.num_requests_waiting=2.0"
    assert text.headers["endpoint-load-metrics"] == told
    one = await answered(loaded, "/v1/completions", {"prompt": "a"}, endpoint_load_metrics_format="json")
    kind, _, found = one.headers["endpoint-load-metrics"].partition(" ")
    assert kind == "JSON"
    assert json.loads(found) == {"named_metrics": {"kv_cache_usage_perc": 0.125, "num_requests_waiting": 2.0}}


async def test_nobody_else_has(loaded: Served) -> None:
    body = {"messages": HI}
    assert "endpoint-load-metrics" not in (await answered(loaded, "/v1/chat/completions", body)).headers
    binary = await answered(loaded, "/v1/chat/completions", body, Endpoint_Load_Metrics_Format="BIN")
    assert "endpoint-load-metrics" not in binary.headers
    for path, sent in (("/v1/chat/completions", {}), ("/tokenize", {"prompt": "a"})):
        other = await loaded.ask("POST", path, sent, Endpoint_Load_Metrics_Format="TEXT")
        assert "endpoint-load-metrics" not in other.headers


def test_before_the_workers_are_there_nothing_is_held() -> None:
    load = msgspec.structs.replace(IDLE, most_tokens=0)
    assert load.core()["token_usage"] == 0.0
