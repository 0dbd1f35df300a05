"""What `actorserve why` does not know, it leaves out: of engines elsewhere, and of options that were changed."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.observer.requests import Facts, Requests
from actorserve.actors.observer.why.explanation import explain
from actorserve.actors.observer.why.scene import Scene
from actorserve.actors.observer.why.text import describe
from actorserve.actors.options.config import Config
from actorserve.actors.protocol.messages import Finish
from actorserve.actors.protocol.request import Generation, Sampling
from actorserve.actors.protocol.topology import System
from actorserve.actors.telemetry.gauges import SchedulerGauge
from actorserve.actors.telemetry.snapshot import ActorStatus, Snapshot
from actorserve.shm.table.stamps import Life, Stamp
from tests.frontend.others import MODEL

BEGUN = (Stamp.RENDER_BEGUN, Stamp.RENDERED, Stamp.ADMITTED)
RUNS = (*BEGUN, Stamp.SCHEDULED, Stamp.FIRST_TOKEN, Stamp.LAST_TOKEN)


def facts_of(ref: int, stamps: tuple[Stamp, ...], **more: Any) -> Facts:
    about: dict[str, Any] = {"cancelled": False, "prompt": 20, "limit": 9, "cached": 0, "text": 0, "full_since": 0}
    about |= {"generated": 0, "finish": Finish.NONE, "held": 0, "computed": 0, "seed": 0, **more}
    params = Generation(Sampling(0), priority=about.pop("priority", 0), request_id=about.pop("request_id", ""))
    return Facts(ref=ref, params=params, life=Life(1, {stamp: stamp + ref for stamp in stamps}, 0, 0), **about)


def scene_of(everything: list[Facts], restarts: int = 0, **options: Any) -> Scene:
    system = System(Config(max_num_seqs=2, max_num_queued_reqs=2, **options), MODEL)
    gauges = dict.fromkeys((gauge.name.lower() for gauge in SchedulerGauge), 0) | {"blocks_total": 9, "blocks_free": 9}
    actors = [
        ActorStatus(
            *(spec.name, spec.kind, 1, "ready", "", 1.0, restarts if spec.kind == "scheduler" else 0, 0.1, 0, 0, None),
            *(0, 0, 0, 0, 0.0, 1, 1),
            gauges if spec.kind == "scheduler" else {},
        )
        for spec in system.actors
    ]
    return Scene(system, Snapshot(1.0, actors, []), everything, 1000)


def test_one_that_runs_on_an_engine_elsewhere_decodes_and_has_no_place_in_a_queue() -> None:
    """What its link writes here are its log and stamps, and neither rows nor blocks."""
    runs, waits = facts_of(1, RUNS, generated=3, engine=1), facts_of(2, BEGUN, engine=1)
    scene = scene_of([runs, waits], remote_engines=["10.0.0.2:8100"])
    for facts, where in ((runs, "decode"), (waits, "waiting for its first step")):
        told = explain(scene, facts)
        assert (told.where, told.computed_tokens, told.queue_place) == (where, None, None)
        assert told.waits_for == ["a step of its engine at 10.0.0.2:8100"]
        assert "of them computed" not in describe(told) and "place in the queue" not in describe(told)


@pytest.mark.parametrize("policy", ["fcfs", "priority"])
def test_after_a_restart_it_is_not_known_by_which_options_its_scheduler_plans(policy: str) -> None:
    first, second = facts_of(1, BEGUN, priority=1), facts_of(2, BEGUN)
    budget = "a step with room: one computes 512 tokens at most"
    for restarts, places, reason in ((0, [1, 2], budget), (1, [None, None], "a step with room")):
        scene = scene_of([first, second], restarts, scheduling_policy=policy, max_num_batched_tokens=512)
        told = [explain(scene, facts) for facts in (first, second)]
        if policy == "priority":
            told.reverse()
        assert [(one.queue_place, one.queue_length) for one in told] == [(place, 2) for place in places]
        assert told[0].waits_for == [reason]
    alike = scene_of([facts_of(1, BEGUN), second], 1, scheduling_policy=policy)
    assert explain(alike, second).queue_place == 2, "in the order of their coming, by any policy"


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("chatcmpl-my-own", ["my-own"]),
        ("cmpl-my-own", ["my-own"]),
        ("my-own", ["my-own"]),
        ("own", []),
        ("x-my-own", []),
        (f"cmpl-{7:016x}{5:08x}", ["seven"]),
        (f"resp_{7:016x}{5:08x}", ["seven"]),
        (f"resp_{1:02x}{7:016x}{5:08x}", ["seven"]),
        (f"msg_{7:016x}{5:08x}", ["seven"]),
        (f"chatcmpl-{8:016x}{5:08x}", []),
    ],
)
def test_it_is_found_by_what_its_client_was_given(name: str, found: list[str]) -> None:
    everything = [facts_of(1, BEGUN, request_id="my-own", seed=3), facts_of(2, BEGUN, request_id="seven", seed=7)]
    assert [facts.params.request_id for facts in Requests.find(name, everything)] == found
