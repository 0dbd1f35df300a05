"""Requests whose clients go away, or whose frontend dies, on real rings: no slot is lost."""

from __future__ import annotations

import random

import pytest

from actorserve.actors.protocol.messages import Cancel, Delta, Failed, Finish, Render, Rendered
from actorserve.actors.protocol.topics.calls import Detokenized, Synced
from actorserve.http.generation.job import Job
from actorserve.shm.table.table import slot_of

from ..others import Others, end, job

# --- clients that go away --------------------------------------------------------------------------------------------


async def test_gone_while_it_is_rendered(others: Others) -> None:
    """The cancel word is set; the renderer sees it, or Cancel follows its answer."""
    asked, free = job(), others.engine.slots.free
    others.engine.submit(asked)
    others.engine.release(asked)
    (render,) = others.received("renderer-0")
    assert others.table.is_cancelled(render.refs[0]) and not others.received("scheduler")
    others.tell("renderer-0", Failed(render.refs, 499, "gone"))
    assert others.engine.slots.free == free

    late = job()
    others.engine.submit(late)
    (render,) = others.received("renderer-0")
    others.put_prompt(render.refs)
    others.engine.release(late)
    others.tell("renderer-0", Rendered(render.refs, 3))
    assert others.received("scheduler") == [Cancel(render.refs)]
    assert others.engine.slots.free == free - 1
    others.tell("detokenizer-0", end(render.refs[0], "", Finish.ABORT))
    assert others.engine.slots.free == free


async def test_gone_while_it_runs(others: Others) -> None:
    asked, free = job(choices=2), others.engine.slots.free
    others.engine.submit(asked)
    (render,) = others.received("renderer-0")
    others.put_prompt(render.refs)
    others.tell("renderer-0", Rendered(render.refs, 3))
    others.tell("detokenizer-0", end(render.refs[0]))
    others.engine.release(asked)
    assert others.received("scheduler") == [Cancel(render.refs[1:])]
    others.tell("detokenizer-0", end(render.refs[1], "", Finish.ABORT))
    assert others.engine.slots.free == free


async def test_a_stop_string_ends_the_answer_before_its_slot_is_free(others: Others) -> None:
    asked, free = job(), others.engine.slots.free
    others.engine.submit(asked)
    (render,) = others.received("renderer-0")
    ref = render.refs[0]
    others.put_prompt([ref])
    others.tell("renderer-0", Rendered([ref], 3))
    others.tell("detokenizer-0", Delta(ref, 0, "ab", 2, Finish.STOP_STRING, "c"))
    await asked.done
    assert asked.choices[0].stop_reason == "c"
    others.engine.release(asked)
    assert others.engine.slots.free == free - 1
    others.tell("detokenizer-0", Delta(ref, 2, "", 5, Finish.STOP_STRING, "c", True))
    assert others.engine.slots.free == free and not others.received("scheduler")


# --- a frontend's death ----------------------------------------------------------------------------------------------


async def test_answers_for_a_predecessor_harm_nobody(others: Others) -> None:
    others.engine.submit(job())
    (render,) = others.received("renderer-0")
    others.restart()
    others.tell("renderer-0", Failed(render.refs, 499, "gone"))
    others.tell("detokenizer-0", end(123 << 32 | 1), Delta(77, 0, "x", 1))
    others.tell("renderer-0", Rendered([5 << 32 | 1], 3), Synced(999), Detokenized(4, "x"))
    asked = job()
    others.engine.submit(asked)
    assert not asked.done.done()


@pytest.fixture(params=[*range(6), *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(6, 80))])
def rng(request: pytest.FixtureRequest) -> random.Random:
    return random.Random(request.param)


class Walk:
    """What a frontend's neighbours do with its requests, in any order."""

    def __init__(self, others: Others, rng: random.Random) -> None:
        self.others, self.rng = others, rng
        self.jobs: list[Job] = []
        self.rendering: list[list[int]] = []
        self.running: list[int] = []
        self.syncs: list[int] = []

    def listen(self) -> None:
        for message in self.others.received("renderer-0"):
            if isinstance(message, Render):
                self.rendering.append(message.refs)
            else:
                self.syncs.append(message.call)

    def submit(self) -> None:
        self.jobs.append(job(choices=self.rng.randrange(1, 3)))
        self.others.engine.submit(self.jobs[-1])

    def render(self) -> None:
        refs, table = self.rendering.pop(0), self.others.table
        wanted = [ref for ref in refs if table.is_current(ref) and not table.is_cancelled(ref)]
        refused = self.rng.random() < 0.3
        good = [] if refused else wanted
        bad = [ref for ref in refs if ref not in good]
        self.others.put_prompt(good)
        self.running.extend(good)
        answers = [Rendered(good, 3)] * bool(good) + [Failed(bad, 400 if refused else 499, "no")] * bool(bad)
        self.others.tell("renderer-0", *answers * self.rng.choice([1, 1, 2]))

    def finish(self) -> None:
        ref = self.running.pop(self.rng.randrange(len(self.running)))
        self.others.table.set_finish(ref, Finish.LENGTH)
        self.others.tell("detokenizer-0", *[end(ref)] * self.rng.choice([1, 1, 2]))

    def release(self) -> None:
        self.others.engine.release(self.jobs.pop(self.rng.randrange(len(self.jobs))))

    def die(self) -> None:
        self.others.restart()
        self.jobs.clear()
        self.listen()
        upstream = {slot_of(ref) for ref in [*self.running, *(ref for refs in self.rendering for ref in refs)]}
        assert not upstream & set(self.others.engine.slots._free)

    def step(self, submits: bool) -> None:
        """Anything."""
        self.listen()
        choice = self.rng.random()
        if submits and choice < 0.35 and self.others.engine.slots.free >= 3:
            self.submit()
        elif choice < 0.5 and self.rendering:
            self.render()
        elif choice < 0.75 and self.running:
            self.finish()
        elif choice < 0.85 and self.jobs:
            self.release()
        elif choice < 0.88:
            self.die()

    def end(self) -> None:
        """All leave, and everything comes to its end."""
        while self.jobs:
            self.release()
        self.listen()
        while self.rendering or self.syncs or self.running:
            if self.rendering:
                self.render()
            elif self.syncs:
                self.others.tell("renderer-0", *[Synced(call) for call in self.syncs])
                self.syncs.clear()
            else:
                self.finish()
            self.listen()


async def test_no_slot_is_ever_lost(others: Others, rng: random.Random) -> None:
    """Requests, answers, departures and deaths in any order, messages that come twice: in the end all is free."""
    free = others.engine.slots.free
    walk = Walk(others, rng)
    for turn in range(160):
        walk.step(submits=turn < 120)
    walk.end()
    assert others.engine.slots.free == free
    assert not others.engine.in_flight()
