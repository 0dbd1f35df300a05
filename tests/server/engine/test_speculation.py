"""Drafts in a real server: every answer is that of a server without them, whoever dies and however many workers."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.info import DEMO_FOLDER, resolve_model
from actorserve.actors.model.memory.machine import count_blocks
from actorserve.actors.observer.why.text import describe
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.topology import System
from actorserve.actors.telemetry.gauges import SchedulerGauge as Gauge
from actorserve.actors.worker.speculative.actor import load_drafter
from actorserve.shm.board.board import Board
from actorserve.shm.segment import Segment
from tests.observer.test_why import look
from tests.server.lifecycle.test_deaths import all_streams
from tests.support.client import http_client
from tests.support.compiler import need_compiler
from tests.support.models import heads
from tests.support.models.checkpoints import checkpoint
from tests.support.models.trained_blocks import train as train_blocks
from tests.support.models.trained_heads import pairs_head, train
from tests.support.selection import slow
from tests.support.server import Server
from tests.support.until import until

NGRAM = json.dumps({"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 1})
DRAFT = json.dumps({"method": "draft_model", "model": str(DEMO_FOLDER), "num_speculative_tokens": 3})
READY = {"ngram": NGRAM, "draft_model": DRAFT, "suffix": json.dumps({"method": "suffix", "num_speculative_tokens": 5})}
PROMPT = "One, two, one, two, one, two,"
ONE = ("--threads", "1", "--debug")
TWO = (*ONE, "-tp", "2")


def ask(server: Server, **body: Any) -> dict[str, Any]:
    given = {"prompt": PROMPT, "max_tokens": 40, "return_token_ids": True, **body}
    with http_client(server) as client:
        answer = client.post("/v1/completions", json=given)
    assert answer.status_code == 200, answer.text
    choice: dict[str, Any] = answer.json()["choices"][0]
    return choice


def gauges(server: Server, workers: int = 1) -> list[int]:
    """The scheduler's words on the board, from the segment of the running server."""
    config = make_config({"threads": 1, "debug": True, "tensor_parallel_size": workers})
    system = System(config, resolve_model(config))
    files = Path(f"/proc/{server.pid}/fd")
    file = next(file for file in files.iterdir() if os.readlink(file).startswith("/dev/shm/actorserve-"))
    segment = Segment.attach(os.open(file, os.O_RDWR))
    found = Board(segment, system.board_offset, len(system.actors)).gauges(system.by_name["scheduler"].position)
    segment.close()
    return found


@pytest.fixture(scope="module")
def plain() -> Iterator[tuple[list[tuple[str, str]], list[dict[str, Any]]]]:
    """What a server without drafts says: streams, and requests of all kinds."""
    with Server(*ONE, "--speculative-config", "none") as server:
        yield asyncio.run(all_streams(server)), [ask(server, **body) for body in KINDS]
        assert not gauges(server)[Gauge.DRAFTS]


SCHEMA = {
    "type": "object",
    "properties": {
        "family_name": {"type": "string", "maxLength": 6},
        "kind_of_customer": {"enum": ["a company", "a private person"]},
        "how_many_of_them": {"type": "integer", "minimum": 1, "maximum": 99},
    },
    "required": ["family_name", "kind_of_customer", "how_many_of_them"],
    "additionalProperties": False,
}
KINDS: list[dict[str, Any]] = [
    {"temperature": 0, "logprobs": 3},
    {"temperature": 0.9, "seed": 4, "logprobs": 1},
    {"temperature": 0.9, "seed": 4, "logprobs": 0, "logprob_token_ids": [300, 5, 7], "ignore_eos": True},
    {"temperature": 0, "stop": [" the"]},
    {"temperature": 1, "seed": 5, "frequency_penalty": 0.5, "presence_penalty": 0.2},
    {"temperature": 0, "min_tokens": 30},
    {"temperature": 0, "structured_outputs": {"regex": "(one|two|, )+"}, "max_tokens": 20},
    {"temperature": 0, "structured_outputs": {"json": SCHEMA}, "max_tokens": 90, "logprobs": 2},
    {"temperature": 1, "seed": 9, "structured_outputs": {"json": SCHEMA}, "max_tokens": 90, "frequency_penalty": 0.4},
    {"temperature": 0, "structured_outputs": {"regex": "It is (forced|drawn), and so is all of this."}, "logprobs": 0},
    {"temperature": 0, "structured_outputs": {"json": SCHEMA}, "max_tokens": 7},
    {"temperature": 0.7, "seed": 6, "top_k": 5, "ignore_eos": True, "max_tokens": 1},
    {"temperature": 0.7, "seed": 6, "min_p": 0.1, "ignore_eos": True, "max_tokens": 2},
    {"temperature": 1.2, "seed": 8, "top_n_sigma": 0.8, "ignore_eos": True},
    {"temperature": 0.9, "seed": 8, "typical_p": 0.7, "ignore_eos": True},
]


def config_of(method: str, folders: pytest.TempPathFactory) -> str:
    """What --speculative-config says, with a head that is made for it."""
    if method in READY:
        return READY[method]
    folder = folders.mktemp(method) / "head"
    if method == "eagle":
        pairs_head(DEMO_FOLDER, folder)
    elif method == "dflash":
        train_blocks(DEMO_FOLDER, folder)
    else:
        train(DEMO_FOLDER, folder, steps=100, texts=30)
    return json.dumps({"method": method, "model": str(folder), "num_speculative_tokens": 3})


LATER = slow("draft_model", "eagle3", "dflash", "ngram", "suffix")


@pytest.fixture(scope="module", params=["eagle", *LATER])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(*ONE, "--speculative-config", config_of(request.param, tmp_path_factory)) as running:
        yield running


Plain = tuple[list[tuple[str, str]], list[dict[str, Any]]]


def test_requests_of_all_kinds(server: Server, plain: Plain) -> None:
    for body, expected in zip(KINDS, plain[1], strict=True):
        found = ask(server, **body)
        assert found["token_ids"] == expected["token_ids"] and found["finish_reason"] == expected["finish_reason"]
        assert found["text"] == expected["text"]
        if "logprobs" in body:
            wanted = expected["logprobs"]["token_logprobs"]
            assert found["logprobs"]["token_logprobs"] == pytest.approx(wanted, abs=1e-3)
            assert found["logprobs"]["tokens"] == expected["logprobs"]["tokens"]
        if "logprob_token_ids" in body:
            assert_alike(found["logprobs"]["top_logprobs"], expected["logprobs"]["top_logprobs"])


def assert_alike(found: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for one, other in zip(found, expected, strict=True):
        assert one == pytest.approx(other, abs=1e-3)


def test_listed_tokens_are_told_once_each_when_the_worker_dies(server: Server, plain: Plain) -> None:
    """Also of what was drawn before, which the prefix cache and the request's log bring back to its successor."""
    (at,) = (index for index, body in enumerate(KINDS) if "logprob_token_ids" in body)
    body = {"prompt": PROMPT, "max_tokens": 40, "stream": True, **KINDS[at]}
    told: list[dict[str, float]] = []
    with http_client(server) as client, client.stream("POST", "/v1/completions", json=body) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                if not told:
                    os.kill(server.pids()["worker"], signal.SIGKILL)
                (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                told += (choice["logprobs"] or {}).get("top_logprobs", [])
    assert len(told) == 40
    assert_alike(told, plain[1][at]["logprobs"]["top_logprobs"])


def test_deaths_in_the_middle_change_no_text(server: Server, plain: Plain) -> None:
    before = gauges(server)
    assert asyncio.run(all_streams(server, "scheduler", "worker", "scheduler")) == plain[0]
    after = gauges(server)
    assert after[Gauge.DRAFT_TOKENS] > before[Gauge.DRAFT_TOKENS], "counts are taken over, and nothing was drafted"
    assert after[Gauge.ACCEPTED_TOKENS] > before[Gauge.ACCEPTED_TOKENS]
    accepted = after[Gauge.ACCEPTED_AT_0 : Gauge.ACCEPTED_AT_7 + 1]
    assert sum(accepted) == after[Gauge.ACCEPTED_TOKENS] <= after[Gauge.DRAFT_TOKENS]
    assert accepted[0] <= after[Gauge.DRAFTS]


def test_what_a_grammar_forces_takes_no_steps(server: Server) -> None:
    """And there are no drafts in such an answer."""
    body = {"structured_outputs": {"regex": "This text is known before anybody has drawn a single token of it: (a|b)"}}
    before = gauges(server)
    found = ask(server, **body, max_tokens=60, temperature=0)
    assert found["finish_reason"] == "stop" and len(found["token_ids"]) > 20
    after = gauges(server)
    assert after[Gauge.STEPS] - before[Gauge.STEPS] < len(found["token_ids"]) / 2
    assert after[Gauge.DRAFTS] == before[Gauge.DRAFTS]


def test_an_answer_tells_how_many_of_its_drafts_were_accepted(server: Server) -> None:
    body, told = {"prompt": PROMPT, "n_predict": 40, "temperature": 0}, dict[str, float]()
    with http_client(server) as client:

        def accepted() -> float:
            told.update(client.post("/completion", json=body).json()["timings"])
            return told.get("draft_n_accepted", 0)

        until(accepted)  # beside busy neighbours few are drafted
    assert 0 < told["draft_n_accepted"] <= told["draft_n"] and told["draft_n_accepted"] < told["predicted_n"]


def test_why_tells_the_share_that_was_accepted(server: Server) -> None:
    body = {"prompt": "One, two, one, two, one, two,", "max_tokens": 40, "temperature": 0}
    with http_client(server) as client:
        client.post("/v1/completions", json=body, headers={"X-Request-Id": "told"}).raise_for_status()
        # How many are drafted follows from what steps take: beside busy neighbours few are.
        until(lambda: client.post("/v1/completions", json=body).is_success and gauges(server)[Gauge.ACCEPTED_TOKENS])
    (answer,) = look(server, "told")
    found = gauges(server)
    assert answer.drafts_accepted == found[Gauge.ACCEPTED_TOKENS] / found[Gauge.DRAFT_TOKENS] > 0
    assert f"{answer.drafts_accepted:.0%} of all requests' were accepted" in describe(answer)


def before_repeat(tokens: list[int], size: int = 16) -> list[int]:
    """The longest beginning whose last `size` tokens stood there before, always followed by what follows it."""
    runs = [tuple(tokens[at : at + size]) for at in range(len(tokens) - size + 1)]
    followed: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    found = 0
    for at, (run, behind) in enumerate(zip(runs, runs[size:], strict=False)):
        if followed.setdefault(run, set()) == {behind}:
            found = at + size
        followed[run].add(behind)
    assert found, f"this text does not repeat itself: {tokens}"
    return tokens[:found]


NATIVE = pytest.param(("--dtype", "float32", "--cpu-kernels", "native"), marks=pytest.mark.slow)


@pytest.mark.parametrize("how", [("--quantization", "int8"), NATIVE])
def test_the_server_drafts_by_itself_where_no_bit_can_differ(how: tuple[str, ...]) -> None:
    """Without a word of drafts it says what it says without any, whoever dies, and counts them."""
    if "native" in how:
        need_compiler()
    repeats = {"temperature": 0, "ignore_eos": True, "max_tokens": 100}
    bodies = [*KINDS, repeats, {**repeats, "logprobs": 2}, {**repeats, "n": 2, "temperature": 0.3, "seed": 3}]
    said: list[list[tuple[Any, ...]]] = []
    looped: list[int] = []  # a text about to repeat itself: its first draft is tried, and is right
    for options in (("--speculative-config", "none"), ()):
        with Server(*ONE, *how, *options) as server:
            if looped:
                ask(server, **{**repeats, "prompt": looped, "max_tokens": 20})
                assert gauges(server)[Gauge.ACCEPTED_TOKENS] > 0, "later ones go by what steps take, so by the machine"
            answers = [ask(server, **body) for body in bodies]
            with ThreadPoolExecutor(1) as pool:
                running = pool.submit(ask, server, **{**repeats, "max_tokens": 400})
                for actor in () if options else ("worker", "scheduler"):
                    server.replace(actor)
                answers.append(running.result())
            said.append([(one["token_ids"], one["text"], one["finish_reason"], one["logprobs"]) for one in answers])
            looped = before_repeat([*answers[-1]["prompt_token_ids"], *answers[-1]["token_ids"]])
            assert (drafted_tokens(server) > 0) == (not options)
    assert said[0] == said[1]


@pytest.mark.parametrize(
    "method",
    ["draft_model", *(pytest.param(method, marks=pytest.mark.slow) for method in ("ngram", "eagle", "dflash"))],
)
def test_two_workers_draft_alike(method: str, plain: Plain, tmp_path_factory: pytest.TempPathFactory) -> None:
    # one of the slowest: two workers, each with two models, which wait for each other at each step
    with Server(*TWO, "--speculative-config", config_of(method, tmp_path_factory)) as server:
        assert asyncio.run(all_streams(server, "worker-1")) == plain[0]
        assert gauges(server, 2)[Gauge.ACCEPTED_TOKENS] > 0


@pytest.mark.slow  # quick ones: eagle's by a server, and each in tests/worker/speculative
@pytest.mark.parametrize("method", ["dflash", "mtp", "medusa"])
def test_heads_of_other_kinds(method: str, tmp_path: Path) -> None:
    """Eight at once, which share a long prefix and come twice; the worker is killed in between."""
    model = checkpoint("qwen2", tmp_path)
    given: dict[str, Any] = {"method": method, "num_speculative_tokens": 3}
    if method == "mtp":
        model = heads.write_mimo(tmp_path / "mimo", model, heads.mtp(model))
    elif method == "dflash":
        given["model"] = str(heads.write_dflash(tmp_path / "head", model, heads.dflash(model)))
    else:
        given["model"] = str(heads.write_medusa(tmp_path / "head", heads.medusa(model)))
    answers = []
    for options in ((), ("--speculative-config", json.dumps(given))):
        with Server(str(model), *ONE, "--dtype", "float32", "--block-size", "16", *options) as server:
            said = ask_many(server)
            server.replace("worker")
            assert ask_many(server) == said
            answers.append(said)
            if options:
                assert drafted_tokens(server) > 0
    assert answers[0] == answers[1]


def ask_many(server: Server) -> list[list[int]]:
    """The tokens of eight answers, greedy and drawn."""
    shared = list(range(5, 75))
    bodies = [
        {"prompt": [*shared, 100 + n], "temperature": 0.8 * (n % 2), "seed": n, "ignore_eos": True} for n in range(8)
    ]
    with ThreadPoolExecutor(8) as pool:
        return [choice["token_ids"] for choice in pool.map(lambda body: ask(server, **body), bodies)]


def drafted_tokens(server: Server) -> float:
    """As /metrics counts them."""
    with http_client(server) as client:
        lines = client.get("/metrics").text.splitlines()
    assert sum(line.startswith("vllm:spec_decode_num_accepted_tokens_per_pos_total{") for line in lines) == 8
    (found,) = [line for line in lines if line.startswith("vllm:spec_decode_num_draft_tokens_total{")]
    return float(found.split()[-1])


def drafting_config(model: str) -> str:
    return json.dumps({"method": "draft_model", "model": model, "num_speculative_tokens": 3})


def test_a_draft_model_of_another_vocabulary_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "other"
    shutil.copytree(DEMO_FOLDER, folder)
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, "vocab_size": 2000}))
    config = make_config({"speculative_config": drafting_config(str(folder))})
    with pytest.raises(ConfigError, match=f"--speculative-config: model: {folder}: it has 2000 words"):
        load_drafter(config, resolve_model(config), None)


def test_its_kv_memory_is_counted() -> None:
    config = make_config({"speculative_config": drafting_config(str(DEMO_FOLDER))})
    info = resolve_model(config)
    drafting = load_drafter(config, info, None)
    assert drafting is not None and drafting.model is not None
    kv, dtype = drafting.model.kv, drafting.model.dtype
    assert drafting.block_bytes == kv.block_bytes(config.block_size, dtype.itemsize)
    enough = msgspec.structs.replace(config, kv_cache_memory_bytes=512 * drafting.block_bytes)
    assert count_blocks(enough, kv, info.max_model_len, dtype) == 512
    assert count_blocks(enough, kv, info.max_model_len, dtype, drafting.block_bytes) == 256


def test_a_server_says_why_it_does_not_start() -> None:
    server = Server(*ONE, "--speculative-config", drafting_config("/nowhere"), wait=False)
    server.wait_for("--speculative-config: model: /nowhere: .*there is no folder")
    assert server.process.wait(30) != 0
