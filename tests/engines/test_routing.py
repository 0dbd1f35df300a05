"""Which engine a prompt goes to: by what is cached, by load, in bursts, and when an engine is down."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest

from actorserve.actors.engines import routing
from actorserve.actors.engines.routing import EACH_RUNNING, EngineRouter
from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import make_config
from actorserve.actors.protocol.topology import System
from actorserve.actors.runtime.process import Context
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.telemetry.gauges import SchedulerGauge
from actorserve.shm.board.board import ActorState, BoardWriter, Parked
from actorserve.shm.kv_map.map import KVMap

ENGINES, BLOCK = 3, 32


class Scene:
    """Three engines that are up and idle; the test writes their schedulers' words and KV maps."""

    def __init__(self) -> None:
        config = make_config({"max_num_seqs": 8, "max_model_len": 1024, "data_parallel_size": ENGINES})
        self.system = System(config, resolve_model(config))
        self.memory = Memory(self.system)
        board = self.memory.board
        self.writers = {actor.name: BoardWriter(board, actor.position) for actor in self.system.actors}
        sizes = self.system.kv_map_sizes
        self.maps = [KVMap(self.memory.segment.map, at, *sizes) for at in self.system.kv_map_offsets]
        for engine in range(ENGINES):
            self.maps[engine].begin(1, 64)
            self.set(engine, blocks_total=64)
        for writer in self.writers.values():
            writer.set_state(ActorState.READY)
        self.context = Context(self.memory.boot(self.system.by_name["renderer-0"]))
        self.router = EngineRouter(self.context)

    def set(self, engine: int, **gauges: int) -> None:
        for name, value in gauges.items():
            self.writers[f"scheduler@{engine}"].set_gauge(SchedulerGauge[name.upper()], value)

    def cache(self, engine: int, prompt: bytes, blocks: int) -> None:
        for index in range(blocks):
            self.maps[engine].cache(index, prompt[16 * index : 16 * index + 16])

    def choose(self, prompt: bytes = b"", sequences: int = 1) -> int:
        return self.router.choose(prompt, max(40, len(prompt) // 16 * BLOCK + 1), sequences)


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.context.close()
    made.memory.close()


def prompt_of(number: int, blocks: int = 8) -> bytes:
    return random.Random(number).randbytes(16 * blocks)


def test_the_longest_cached_prefix_wins(scene: Scene) -> None:
    prompt = prompt_of(1)
    scene.cache(1, prompt, 5)
    scene.cache(2, prompt, 7)
    assert scene.choose(prompt) == 2
    scene.maps[2].uncache(0)
    scene.router = EngineRouter(scene.context)
    assert scene.choose(prompt) == 1, "behind a gap nothing counts"


def test_load_outweighs_a_short_prefix_and_not_a_long_one(scene: Scene) -> None:
    prompt = prompt_of(1)
    scene.cache(1, prompt, 8)
    scene.set(1, running=8 * BLOCK // EACH_RUNNING - 1)
    assert scene.choose(prompt) == 1
    scene.set(1, running=8 * BLOCK // EACH_RUNNING + 1)
    assert EngineRouter(scene.context).choose(prompt, 8 * BLOCK + 1) != 1
    scene.set(1, running=0, waiting=20)
    assert EngineRouter(scene.context).choose(prompt, 8 * BLOCK + 1) != 1, "who waits there weighs more"


def test_prompts_that_nobody_knows_fill_all_in_turn(scene: Scene) -> None:
    found = []
    for number in range(9):
        found.append(scene.choose(prompt_of(number)))
        scene.set(found[-1], running=1)
        scene.set(found[-1], running=0)
    assert sorted(found) == sorted([*range(ENGINES)] * 3)


def test_a_burst_of_one_prefix_stays_together_until_load_says_otherwise(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody has computed it when the others come."""
    prompt = prompt_of(1)
    first = scene.choose(prompt)
    assert {scene.choose(prompt) for _ in range(5)} == {first}
    found = [scene.choose(prompt) for _ in range(40)]
    assert len(set(found)) > 1, "what was sent and is not seen yet counts, too"
    monkeypatch.setattr(routing, "SENT_S", -1.0)
    fresh = EngineRouter(scene.context)
    assert {fresh.choose(prompt_of(2), 257) for _ in range(3)} == {0, 1, 2}, "for some time only"


def test_what_came_and_went_between_two_looks_is_no_load(scene: Scene) -> None:
    """One after the other with one prefix, each of which has ended when the next one comes."""
    prompt = prompt_of(1)
    scene.cache(1, prompt, 8)
    for number in range(100):
        assert scene.choose(prompt) == 1
        scene.set(1, prompted=257 * (number + 1))


def test_an_engine_that_is_down_gets_nothing(scene: Scene) -> None:
    prompt = prompt_of(1)
    scene.cache(0, prompt, 8)
    scene.writers["worker@0"].set_state(ActorState.STARTING)
    scene.set(1, blocks_total=0)
    assert {scene.choose(prompt) for _ in range(5)} == {2}
    assert scene.router.up() == [2] and scene.router.up(but=2) == []
    scene.writers["scheduler@2"].set_state(ActorState.STARTING)
    assert scene.choose(prompt) in range(ENGINES), "it waits there"


def test_a_parked_engine_gets_nothing_though_all_others_are_down(scene: Scene) -> None:
    prompt = prompt_of(8)
    scene.cache(1, prompt, 8)
    scene.memory.park(scene.system.workers_of(1)[0], Parked.SCALE)
    assert 1 not in {scene.choose(prompt) for _ in range(8)} and scene.router.up() == [0, 2]
    for engine in (0, 2):
        scene.writers[f"worker@{engine}"].set_state(ActorState.STARTING)
    assert 1 not in {scene.choose(prompt_of(9)) for _ in range(8)} and not scene.router.up()
    scene.memory.park(scene.system.workers_of(1)[0], Parked.NO)
    assert scene.choose(prompt) == 1 and scene.router.up() == [1]


def test_a_pinned_prompt_goes_where_it_is_wanted(scene: Scene) -> None:
    scene.set(1, running=8)
    assert scene.router.choose(b"", 40, 1, (1,)) == 1


def test_prompts_go_to_engines_of_their_model_alone() -> None:
    config = make_config({"max_num_seqs": 8, "max_model_len": 1024, "also": ["other,data-parallel-size=2"]})
    info = resolve_model(config)
    system = System(config, info, [info])
    memory = Memory(system)
    try:
        for name, engines in (("renderer-0", {0}), ("renderer-0+other", {1, 2}), ("scheduler@1", {1, 2})):
            context = Context(memory.boot(system.by_name[name]))
            router = EngineRouter(context)
            chosen = {router.choose(prompt_of(number), 257) for number in range(8)}
            assert chosen == engines, "though all are down: it waits, and never for another model"
            assert router.up() == []
            context.close()
    finally:
        memory.close()
