"""Readiness and figures of a frontend, from a board that the test writes in the name of all actors."""

from __future__ import annotations

import re
import subprocess
import time
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from actorserve.actors.frontend.observability import metrics
from actorserve.actors.frontend.observability.metrics import ServerMetrics
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import FrontendGauge, SchedulerGauge
from actorserve.actors.telemetry.startup import StartPhase
from actorserve.shm.board.board import HEARTBEAT, PID, ActorState, BoardWriter
from actorserve.shm.board.startup import PhaseWriter
from actorserve.shm.kv_map.sleep import Part, SleepState, SleepWord

OLD_NS = int((metrics.STALE_S + 1) * 1e9)


class Scene:
    """All actors are READY, the scheduler knows its KV memory. They are all played by this process."""

    def __init__(self, models: int = 1, **options: Any) -> None:
        config = make_config({"max_num_seqs": 4, "max_model_len": 256, "max_num_queued_reqs": 3, **options})
        info = resolve_model(config)
        self.memory = Memory(System(config, info, [info] * (models - 1)))
        self.board, self.system = self.memory.board, self.memory.system
        self.context = Context(self.memory.boot(self.system.by_name["frontend-0"]))
        self.writers = {
            actor.name: BoardWriter(self.board, actor.position, kept=actor.traits.kept) for actor in self.system.actors
        }
        for writer in self.writers.values():
            writer.set_state(ActorState.READY)
        for name in self.system.schedulers:
            self.writers[name].set_gauge(SchedulerGauge.BLOCKS_TOTAL, 10)
        self.figures = ServerMetrics(self.context)

    def set_word(self, name: str, word: int, value: int) -> None:
        self.board.words[self.board.word(self.system.by_name[name].position, word)] = value

    def let_stand(self, name: str) -> None:
        """Its loop does not turn any more."""
        self.set_word(name, HEARTBEAT, time.monotonic_ns() - OLD_NS)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene(frontends=2)
    yield made
    made.context.close()
    made.memory.close()


def test_ready(scene: Scene) -> None:
    assert scene.figures.not_ready() == []


@pytest.mark.parametrize("state", [ActorState.STARTING, ActorState.DRAINING])
def test_an_actor_that_says_that_it_is_not(scene: Scene, state: ActorState) -> None:
    scene.writers["detokenizer-0"].set_state(state)
    assert scene.figures.not_ready() == [f"detokenizer-0: {state.name.lower()}"]


def test_a_life_that_has_not_begun(scene: Scene) -> None:
    scene.memory.raise_incarnation(scene.system.by_name["renderer-0"])
    assert scene.figures.not_ready() == ["renderer-0: starting"]


@pytest.mark.parametrize("name", ["scheduler", "renderer-0", "frontend-1"])
def test_a_loop_that_stands_still(scene: Scene, name: str) -> None:
    scene.let_stand(name)
    (reason,) = scene.figures.not_ready()
    assert reason.startswith(f"{name}: hung: its loop has not turned for 4.")
    scene.writers[name].beat()
    assert scene.figures.not_ready() == []


def test_a_step_may_take_longer_and_who_answers_is_alive(scene: Scene) -> None:
    scene.let_stand("worker")
    scene.let_stand("frontend-0")
    assert scene.figures.not_ready() == []


def test_a_process_that_is_gone(scene: Scene) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    scene.set_word("worker", PID, gone.pid)
    assert scene.figures.not_ready() == ["worker: dead"]


def test_no_kv_memory(scene: Scene) -> None:
    scene.writers["scheduler"].set_gauge(SchedulerGauge.BLOCKS_TOTAL, 0)
    assert scene.figures.not_ready() == ["scheduler: no KV memory: it has not met its worker yet"]


@pytest.mark.parametrize("asleep", [Part.ALL, Part.NONE])
def test_an_engine_that_sleeps_by_itself_takes_requests_also_while_it_wakes(scene: Scene, asleep: Part) -> None:
    word = SleepWord(scene.context.segment.map, scene.system.kv_map_offsets[0])
    word.state = SleepState(bool(asleep), asleep, idle=True)
    scene.writers["scheduler"].set_gauge(SchedulerGauge.BLOCKS_TOTAL, 0)
    scene.writers["worker"].set_state(ActorState.STARTING)
    assert scene.figures.not_ready() == []
    word.state = SleepState()
    assert {reason.partition(":")[0] for reason in scene.figures.not_ready()} == {"scheduler", "worker"}


def test_a_queue_that_is_full(scene: Scene) -> None:
    scene.writers["scheduler"].set_gauge(SchedulerGauge.RUNNING, 4)
    scene.writers["scheduler"].set_gauge(SchedulerGauge.WAITING, 2)
    assert scene.figures.not_ready() == []
    scene.writers["scheduler"].set_gauge(SchedulerGauge.WAITING, 3)
    assert scene.figures.not_ready() == ["scheduler: its queue is full (7 sequences)"]


def test_what_several_frontends_count_is_one_number(scene: Scene) -> None:
    for number, name in enumerate(("frontend-0", "frontend-1"), 1):
        scene.writers[name].set_gauge(FrontendGauge.IN_FLIGHT, number)
        scene.writers[name].set_gauge(FrontendGauge.REFUSED, 10 * number)
        spec = scene.system.by_name[name]
        first = scene.system.histograms(scene.context.segment, spec)["vllm:time_to_first_token_seconds"]
        first.observe(number * 10**9)
    assert scene.figures.load() == 3
    text = b"".join(scene.figures.metrics()[0]).decode()
    labels = f'engine="0",model_name="{scene.context.config.served_names()[0]}"'
    assert f'vllm:admission_rejections_total{{{labels},reason="no_free_slot"}} 30.0' in text
    assert f"vllm:time_to_first_token_seconds_sum{{{labels}}} 3.0" in text
    assert f"vllm:time_to_first_token_seconds_count{{{labels}}} 2.0" in text


def startup(scene: Scene, name: str) -> dict[str, str]:
    """Seconds by phase and of all, as /metrics has them."""
    text = b"".join(scene.figures.metrics()[0]).decode()
    found = re.findall(rf'^actorserve:startup_seconds{{actor="{name}",phase="(.*)"}} (.*)$', text, re.MULTILINE)
    total = re.search(rf'^actorserve:startup_total_seconds{{actor="{name}"}} (.*)$', text, re.MULTILINE)
    assert total is not None
    return {**dict(found), "all": total[1]}


def test_how_long_a_start_took(scene: Scene) -> None:
    spec, words = scene.system.by_name["worker"], scene.context.segment
    assert startup(scene, "worker") == {"all": "0.0"}
    began = scene.board.snapshot(spec.position).started_ns
    writer = PhaseWriter(words, scene.system.phase_offsets["worker"], began)
    writer.end(StartPhase.IMPORTS, began + 250_000_000)
    writer.end(StartPhase.WEIGHTS, began + 1_750_000_000)
    assert startup(scene, "worker") == {"imports": "0.25", "weights": "1.5", "all": "1.75"}
    scene.memory.phase_ends(StartPhase.MEMORY, began + 10**9)
    assert startup(scene, "supervisor").keys() == {"memory", "all"}
    scene.memory.raise_incarnation(spec)  # another life has none of them yet
    assert startup(scene, "worker") == {"all": "0.0"}


def test_texts_are_served_while_what_looks_at_pictures_rests() -> None:
    config = make_config({"max_num_seqs": 4, "max_model_len": 256})
    memory = Memory(System(config, msgspec.structs.replace(resolve_model(config), media=["image"])))
    figures = ServerMetrics(Context(memory.boot(memory.system.by_name["frontend-0"])))
    writers = {one.name: BoardWriter(memory.board, one.position, kept=one.traits.kept) for one in memory.system.actors}
    writers["scheduler"].set_gauge(SchedulerGauge.BLOCKS_TOTAL, 9)
    for name, writer in writers.items():
        writer.set_state(ActorState.READY if name != "media-0" else ActorState.STARTING)
    assert figures.not_ready() == ["media-0: starting"], "until it was there once"
    writers["media-0"].set_state(ActorState.READY)
    assert (figures.not_ready(), figures.degraded()) == ([], [])
    memory.raise_incarnation(memory.system.by_name["media-0"])
    assert (figures.not_ready(), figures.degraded()) == ([], ["media-0: starting"])


@pytest.fixture
def models() -> Iterator[Scene]:
    """The first has one engine, the other two."""
    made = Scene(2, also=["org/other,data-parallel-size=2,max-num-seqs=8"])
    yield made
    made.context.close()
    made.memory.close()


@pytest.mark.parametrize(
    ("down", "serves"),
    [
        ([], True),
        (["worker@0"], True),
        (["renderer-0"], True),
        (["worker@0", "scheduler@1"], True),
        (["worker@1", "worker@2"], True),
        (["worker@1", "worker@2", "renderer-0"], False),
        (["worker@0", "detokenizer-0+other"], False),
        (["renderer-0", "renderer-0+other"], False),
        (["frontend-0"], False),
    ],
)
def test_a_server_serves_while_one_of_its_models_is_whole(models: Scene, down: list[str], serves: bool) -> None:
    for name in down:
        models.writers[name].set_state(ActorState.STARTING)
    troubles = [f"{actor.name}: starting" for actor in models.system.actors if actor.name in down]
    assert (models.figures.not_ready(), models.figures.degraded()) == (([], troubles) if serves else (troubles, []))


def test_figures_name_their_model(models: Scene) -> None:
    for number, name in enumerate(models.system.schedulers, 1):
        models.writers[name].set_gauge(SchedulerGauge.RUNNING, number)
    text = b"".join(models.figures.metrics()[0]).decode()
    own = models.context.config.served_names()[0]
    for engine, name in enumerate((own, "org/other", "org/other")):
        labels = f'{{engine="{engine}",model_name="{name}"}}'
        assert f"vllm:num_requests_running{labels} {engine + 1}.0" in text
    assert f'model_name="{own},org/other"' in text, "what frontends count is of both"


def test_a_queue_is_as_long_as_its_model_lets_it_be(models: Scene) -> None:
    for name in ("scheduler@0", "scheduler@1"):
        models.writers[name].set_gauge(SchedulerGauge.RUNNING, 7)
    assert models.figures.degraded() == ["scheduler@0: its queue is full (7 sequences)"]


def test_sglangs_names_have_the_labels_of_ours(models: Scene) -> None:
    """Its benchmark of batches adds up all lines that begin so, labels and all."""
    for number, name in enumerate(models.system.schedulers, 1):
        models.writers[name].set_gauge(SchedulerGauge.PROMPTED, 100 * number)
        models.writers[name].set_gauge(SchedulerGauge.PREFIX_HITS, 10 * number)
    lines = b"".join(models.figures.metrics()[0]).decode().splitlines()
    for name, ours, total in (("prompt_tokens", "prompt_tokens", 600), ("cached_tokens", "prompt_tokens_cached", 60)):
        told = [line for line in lines if line.startswith(f"sglang:{name}_total{{")]
        assert sum(float(line.split()[-1]) for line in told) == total
        assert {line.replace(f"sglang:{name}", f"vllm:{ours}") for line in told} <= set(lines)
        assert f"# TYPE sglang:{name}_total counter" in lines


def test_llamacpps_names_are_of_all_engines_together(models: Scene) -> None:
    for number, name in enumerate(models.system.schedulers, 1):
        models.writers[name].set_gauge(SchedulerGauge.RUNNING, number)
        models.writers[name].set_gauge(SchedulerGauge.GENERATED, 20)
        histograms = models.system.histograms(models.context.segment, models.system.by_name[name])
        histograms["vllm:iteration_tokens_total"].observe(8, times=10)
        histograms["vllm:request_prefill_kv_computed_tokens"].observe(100)
        histograms["vllm:request_prefill_time_seconds"].observe(2 * 10**9)
        histograms["vllm:request_generation_tokens"].observe(21)
        histograms["vllm:request_decode_time_seconds"].observe(4 * 10**9)
    lines = b"".join(models.figures.metrics()[0]).decode().splitlines()
    told = dict(line.split() for line in lines if line.startswith("llamacpp:"))
    assert {name.removeprefix("llamacpp:"): float(value) for name, value in told.items() if float(value)} == {
        "requests_processing": 1 + 2 + 3,
        "tokens_predicted_total": 60,
        "prompt_tokens_total": 300,
        "prompt_seconds_total": 6,
        "tokens_predicted_seconds_total": 12,
        "n_decode_total": 30,
        "prompt_tokens_seconds": 50,
        "predicted_tokens_seconds": 5,
        "n_busy_slots_per_decode": 2,
    }
    assert "# TYPE llamacpp:n_decode_total counter" in lines
