"""How many engines are wanted: by what waits, and by how long they were not needed."""

from __future__ import annotations

from actorserve.actors.caretaker.demand import STEPS, WAITS_S, Demand, DemandSample

STEP, ROWS, IDLE_S = 100, 8, 60.0
MUCH = STEPS * STEP + 1


def test_one_more_is_wanted_while_prompts_wait_and_only_when_the_last_one_is_there() -> None:
    demand = Demand(1, 3, STEP, ROWS, IDLE_S)
    assert demand.look(10.0, DemandSample(1, 0, 8, MUCH)) == 1
    assert demand.look(10.0 + WAITS_S / 2, DemandSample(1, 0, 8, MUCH)) == 1
    assert demand.look(10.0 + WAITS_S, DemandSample(1, 0, 8, MUCH)) == 2
    assert demand.look(30.0, DemandSample(1, 0, 8, MUCH)) == 2, "the second is not there yet"
    assert demand.look(31.0, DemandSample(2, 0, 16, MUCH)) == 2, "for two of them this is not much"
    for second in range(32, 60):
        wanted = demand.look(float(second), DemandSample(2, 0, 16, 2 * MUCH))
    assert wanted == 3
    for second in range(60, 90):
        wanted = demand.look(float(second), DemandSample(3, 0, 24, 9 * MUCH))
    assert wanted == 3, "no more than that"


def test_one_less_is_wanted_when_the_others_would_do_for_long() -> None:
    demand = Demand(1, 3, STEP, ROWS, IDLE_S, wanted=3)
    assert demand.look(0.5, DemandSample(3, 0, 4, 0)) == 3
    assert demand.look(50.0, DemandSample(3, 0, 24, 0)) == 3, "they are needed"
    assert demand.look(51.0, DemandSample(3, 0, 4, 0)) == 3
    assert demand.look(51.0 + IDLE_S, DemandSample(3, 0, 4, 0)) == 2
    assert demand.look(52.0 + IDLE_S, DemandSample(2, 0, 0, 0)) == 2
    assert demand.look(53.0 + 2 * IDLE_S, DemandSample(2, 0, 0, 0)) == 1
    assert demand.look(900.0, DemandSample(1, 0, 0, 0)) == 1


def test_a_successor_begins_with_those_that_are_there() -> None:
    assert Demand(1, 3, STEP, ROWS, IDLE_S, wanted=2).wanted == 2
    assert Demand(2, 3, STEP, ROWS, IDLE_S, wanted=0).wanted == 2
    assert Demand(1, 3, STEP, ROWS, IDLE_S, wanted=9).wanted == 3


def test_other_engines_have_their_part_of_what_is_there_and_are_none_of_those_that_are_wanted() -> None:
    demand = Demand(1, 3, STEP, ROWS, IDLE_S, wanted=2)
    for second in range(1, 20):
        wanted = demand.look(float(second), DemandSample(1, 1, 16, 3 * MUCH))
    assert wanted == 2, "of Ray's the second is not there yet"
    assert demand.look(20.0, DemandSample(2, 1, 16, 2 * MUCH)) == 2
    for second in range(21, 40):
        wanted = demand.look(float(second), DemandSample(2, 1, 16, 2 * MUCH))
    assert wanted == 2, "for three of them this is not much"
    assert demand.look(40.0, DemandSample(2, 1, 8, 0)) == 2
    assert demand.look(40.0 + IDLE_S, DemandSample(2, 1, 8, 0)) == 1, "the one here and one of Ray's would do"
