"""The caretaker beside a pretended Ray: what becomes of the places of engines."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.caretaker.actor import CaretakerActor
from actorserve.actors.caretaker.demand import DemandSample
from actorserve.actors.options.config import Config
from actorserve.actors.options.sources import SECRET_VARIABLE
from actorserve.actors.protocol.topology import System
from actorserve.actors.supervisor.shared_memory import Memory
from tests.frontend.others import MODEL

NAMESPACE = "actorserve-engines"
CONFIG = Config(
    max_num_seqs=2, max_num_queued_reqs=2, remote_engines=[f"ray://?engines=1-2#{number}" for number in range(2)]
)


class Killed(BaseException):
    """The caretaker ends here."""


class RayActorError(Exception):
    """As of an actor that has ended."""


class ActorUnavailableError(RayActorError):
    """As of one that is started again."""


class Handle:
    """An engine, which says what the test wants."""

    def __init__(self, name: str, options: str) -> None:
        self.name = name
        self.says: Callable[[], dict[str, Any]] = lambda: {"id": "1", "options": options, "host": "a", "port": 1}
        self.state: Any = SimpleNamespace(remote=lambda: self)
        self.has_retired = False
        self.retire: Any = SimpleNamespace(remote=self._retire)

    def _retire(self) -> None:
        self.has_retired = True


class PretendedRay:
    """A cluster's named actors and placement groups; its state outlives caretakers."""

    def __init__(self) -> None:
        self.actors: dict[str, Handle] = {}
        self.groups: dict[str, str] = {}  # states by names
        self.begin: Callable[[Handle], None] = lambda handle: None
        self.exceptions = SimpleNamespace(RayActorError=RayActorError, ActorUnavailableError=ActorUnavailableError)
        self.util = SimpleNamespace(
            list_named_actors=lambda all_namespaces: (
                [{"namespace": NAMESPACE, "name": name} for name in self.actors]
                + [{"namespace": "another", "name": "0-of-another"}]
            ),
            placement_group=self._place,
            placement_group_table=lambda: {
                str(number): {"name": name, "state": state} for number, (name, state) in enumerate(self.groups.items())
            },
            get_placement_group=self._group,
            remove_placement_group=self._remove,
            scheduling_strategies=SimpleNamespace(PlacementGroupSchedulingStrategy=lambda group, **more: group),
        )

    def _place(self, bundles: list[dict[str, float]], strategy: str, name: str, lifetime: str) -> str:
        assert lifetime == "detached"
        self.groups[name] = "CREATED"
        return name

    def _group(self, name: str) -> str:
        if self.groups.get(name, "REMOVED") == "REMOVED":
            raise ValueError(f"there is no {name}")
        return name

    def _remove(self, group: str) -> None:
        self.groups[group] = "REMOVED"

    def get_actor(self, name: str, namespace: str) -> Handle:
        assert namespace == NAMESPACE
        return self.actors[name]

    def remote(self, kind: type) -> Any:
        def begin(name: str, words: list[str], secret: str, options: str) -> Handle:
            handle = Handle(name, options)
            self.begin(handle)
            self.actors[name] = handle
            return handle

        return SimpleNamespace(options=lambda name, **more: SimpleNamespace(remote=lambda *given: begin(name, *given)))

    def wait(self, answers: list[Handle], timeout: float) -> tuple[list[Handle], list[Handle]]:
        return answers, []

    def get(self, answer: Handle) -> dict[str, Any]:
        return answer.says()

    def kill(self, handle: Handle, no_restart: bool) -> None:
        del self.actors[handle.name]

    @property
    def places(self) -> list[str]:
        """Those that are there."""
        return [name for name, state in self.groups.items() if state != "REMOVED"]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Iterator[Memory]:
    monkeypatch.setenv(SECRET_VARIABLE, "a secret that is long enough")
    made = Memory(System(CONFIG, MODEL))
    yield made
    made.close()


def caretaker_of(memory: Memory, ray: PretendedRay) -> CaretakerActor:
    context: Any = SimpleNamespace(
        config=CONFIG, system=memory.system, board=memory.board, files=memory.files, log=logging.getLogger("caretaker")
    )
    return CaretakerActor(context, ray)


def work(caretaker: CaretakerActor) -> None:
    """Ask, and hear the answer."""
    for _ in range(2):
        caretaker.do_work()


def test_each_engine_has_a_place_of_its_name(memory: Memory) -> None:
    ray = PretendedRay()
    caretaker = caretaker_of(memory, ray)
    work(caretaker)
    assert ray.places == [f"{NAMESPACE}/{name}" for name in ray.actors] and len(ray.actors) == 1
    work(caretaker_of(memory, ray))
    assert len(ray.places) == len(ray.actors) == 1, "a successor takes over what is there"


@pytest.mark.parametrize("ended", [False, True])
def test_the_place_of_an_engine_that_is_replaced_is_given_back(memory: Memory, ended: bool) -> None:
    """Of one with other options, and of one that has ended for good."""
    ray = PretendedRay()
    caretaker = caretaker_of(memory, ray)
    caretaker.do_work()
    ((name, handle),) = ray.actors.items()

    def has_ended() -> dict[str, Any]:
        del ray.actors[name]
        raise RayActorError("it has ended")

    others = {**handle.says(), "options": "others"}
    handle.says = has_ended if ended else lambda: others
    work(caretaker)
    assert name not in ray.actors and ray.places == []
    work(caretaker)
    assert ray.places == [f"{NAMESPACE}/{other}" for other in ray.actors] and len(ray.actors) == 1


def test_an_engine_that_has_given_its_place_back_itself(memory: Memory) -> None:
    ray = PretendedRay()
    caretaker = caretaker_of(memory, ray)
    caretaker.do_work()
    ((name, handle),) = ray.actors.items()

    def has_retired() -> dict[str, Any]:
        del ray.actors[name]
        ray._remove(f"{NAMESPACE}/{name}")
        raise RayActorError("it has ended")

    handle.says = has_retired
    work(caretaker)
    assert ray.actors == {} and ray.places == []


def test_a_successor_gives_back_what_nobody_has(memory: Memory) -> None:
    """Of a caretaker that died between a place and its engine, and of engines that are there twice; no others'."""
    ray = PretendedRay()

    def dies(handle: Handle) -> None:
        raise Killed

    ray.begin = dies
    with pytest.raises(Killed):
        caretaker_of(memory, ray).do_work()
    assert len(ray.places) == 1
    theirs = ["another/0-of-another", f"{NAMESPACE}/inner/0-abc", "none"]
    for name in ("0-first", "0-twice"):
        ray.actors[name] = Handle(name, "")
        ray.groups[f"{NAMESPACE}/{name}"] = "CREATED"
    ray.groups.update(dict.fromkeys(theirs, "CREATED"))
    caretaker_of(memory, ray)
    assert ray.places == [f"{NAMESPACE}/0-first", *theirs] and list(ray.actors) == ["0-first"]


def test_engines_of_others_do_not_stand_for_those_of_ray(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> None:
    caretaker = caretaker_of(memory, PretendedRay())
    seen = list[DemandSample]()
    monkeypatch.setattr(caretaker, "_loads", SimpleNamespace(engines=range(3), is_up=lambda engine: engine != 2))

    def look(now: float, sample: DemandSample) -> int:
        seen.append(sample)
        return 1

    monkeypatch.setattr(caretaker._demand, "look", look)
    caretaker.do_work()
    assert seen == [DemandSample(up=1, others=1, running=0, waiting_tokens=0)]


@pytest.mark.parametrize("state", ["CREATED", "PENDING", "RESCHEDULING"])
def test_who_is_not_wanted_any_more_retires_and_waits_for_no_place(
    memory: Memory, monkeypatch: pytest.MonkeyPatch, state: str
) -> None:
    ray = PretendedRay()
    caretaker = caretaker_of(memory, ray)
    wanted = 2
    monkeypatch.setattr(caretaker._demand, "look", lambda now, sample: wanted)
    work(caretaker)
    first, second = ray.actors.values()
    ray.groups[f"{NAMESPACE}/{second.name}"] = state
    wanted = 1
    work(caretaker)
    assert second.has_retired == (state == "CREATED") and not first.has_retired
    kept = [first.name, second.name] if second.has_retired else [first.name]
    assert list(ray.actors) == kept and ray.places == [f"{NAMESPACE}/{name}" for name in kept]
