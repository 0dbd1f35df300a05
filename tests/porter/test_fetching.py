"""Fetches: one carrier after the other is asked for what is missing, and what came in time is the answer."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from actorserve.actors.porter import fetching as module
from actorserve.actors.porter.carrier import Kind, Reading
from actorserve.actors.porter.fetching import Fetching
from actorserve.actors.porter.host import HostTier
from actorserve.actors.protocol.topics.tiers import Fetch
from actorserve.actors.telemetry.gauges import PorterGauge
from actorserve.shm.kv_tier.arena import TierArena
from actorserve.shm.kv_tier.layout import TierSizes, create_tier

SIZE = 5000
KIND = Kind(bytes(32), SIZE)
KEYS = [bytes([number]) * 16 for number in range(6)]


def contents(key: bytes) -> bytes:
    return (key * SIZE)[:SIZE]


@dataclass
class Carrier:
    """Does nothing by itself."""

    hits: PorterGauge = PorterGauge.HITS_PEERS
    answers: bool = True
    readings: list[Reading] = field(default_factory=list)

    def read(self, kind: Kind, keys: list[bytes]) -> Reading:
        self.readings.append(Reading(kind, keys, []))
        return self.readings[-1]

    def gives(self, count: int, *, done: bool = True) -> None:
        reading = self.readings[-1]
        reading.blocks += [contents(key) for key in reading.keys[len(reading.blocks) :][:count]]
        reading.done = done


class Bench:
    """What a porter has of it."""

    def __init__(self, *carriers: Carrier) -> None:
        sizes = TierSizes(1, 1 << 20)
        self.host = HostTier(TierArena(create_tier(sizes), sizes))
        self.host.format(KIND.fingerprint, SIZE)
        self.counts = dict.fromkeys(PorterGauge, 0)
        self.answers: list[list[int]] = []
        self.fetching = Fetching(self.host, lambda _, slots: self.answers.append(slots), self.count)
        self.carriers = carriers

    def count(self, gauge: PorterGauge, number: int) -> None:
        self.counts[gauge] += number

    def begin(self, keys: list[bytes] = KEYS, peer: str = "") -> None:
        self.fetching.begin(Fetch(0, 7, b"".join(keys), peer), KIND, keys, self.carriers)

    def found(self) -> list[bytes]:
        """The contents of what was answered; all of that is leased."""
        (slots,) = self.answers
        assert all(self.host.arena.is_leased(slot) for slot in slots)
        return [bytes(self.host.arena.data(slot)) for slot in slots]


def test_one_after_the_other_is_asked_for_what_is_missing() -> None:
    """Who does not answer is left out, and who gives nothing is not the last."""
    carriers = Carrier(), Carrier(answers=False), Carrier(), Carrier(PorterGauge.HITS_FOLDER)
    bench = Bench(*carriers)
    bench.begin()
    carriers[0].gives(2)
    bench.fetching.go_on(KIND)
    assert not bench.answers and carriers[2].readings[0].keys == KEYS[2:] and not carriers[1].readings
    carriers[2].gives(0)
    bench.fetching.go_on(KIND)
    carriers[3].gives(3)
    bench.fetching.go_on(KIND)
    assert bench.found() == [contents(key) for key in KEYS[:5]] and not len(bench.fetching)
    assert (bench.counts[PorterGauge.HITS_PEERS], bench.counts[PorterGauge.HITS_FOLDER]) == (2, 3)
    bench.answers.clear()
    bench.begin(KEYS[:5])
    assert len(bench.found()) == 5 == bench.counts[PorterGauge.HITS_HOST], "then it is in memory"


def test_what_came_in_time_is_the_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fetch that names a server waits longer."""
    monkeypatch.setattr(module, "ANSWER_S", 0.0)
    bench = Bench(carrier := Carrier())
    bench.begin()
    carrier.gives(2, done=False)
    bench.fetching.go_on(KIND)
    assert len(bench.found()) == 2 and not carrier.readings[0].wanted
    bench.answers.clear()
    bench.begin(peer="a:1")
    bench.fetching.go_on(KIND)
    assert not bench.answers and carrier.readings[1].wanted


@pytest.mark.parametrize("how", ["dropped", "of another kind"])
def test_what_is_not_wanted_any_more_is_not_answered_with(how: str) -> None:
    bench = Bench(carrier := Carrier())
    bench.begin()
    carrier.gives(2, done=False)
    if how == "dropped":
        bench.fetching.drop()
    else:
        bench.fetching.go_on(Kind(bytes(range(32)), SIZE))
    assert bench.answers == [[]] and not carrier.readings[0].wanted and not len(bench.fetching)
