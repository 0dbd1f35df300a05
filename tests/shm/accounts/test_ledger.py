"""What keys use is counted once, whichever store of it is a frontend's last; and one at a time lets requests in."""

from __future__ import annotations

from collections.abc import Callable

from actorserve.shm.accounts import ledger
from actorserve.shm.accounts.layout import WINDOW, Flag, Total, ledger_bytes
from actorserve.shm.accounts.ledger import LedgerWriter, Line
from actorserve.shm.layout import make_ref
from actorserve.shm.segment import Segment

from ..aborting import every_abort

MODULES = (ledger,)
ENTRIES, SLOTS, KEY, NOW = 3, 4, 2, 1000
PAYS = Flag.HELD | Flag.PAYS_REQUEST | Flag.PAYS_PROMPT


class Scene:
    """Two frontends of two slots each; the first runs a request of KEY's in its second slot."""

    def __init__(self) -> None:
        self.segment = Segment.create(ledger_bytes(2, ENTRIES, SLOTS), "test")
        self.first, self.second = self.life(0), self.life(1)
        self.ref = make_ref(7, 1)
        self.begin(self.first, self.ref)

    def life(self, index: int) -> LedgerWriter:
        return LedgerWriter(self.segment, 0, 2, ENTRIES, SLOTS, (index, 2 * index, 2))

    def begin(self, writer: LedgerWriter, ref: int) -> None:
        writer.hold(ref, Line(KEY, PAYS, writer.admit(KEY, NOW), NOW, 30))
        writer.opened()

    def asked(self) -> int:
        return sum(amount for _, amount in self.second.window(KEY, NOW))

    def used(self) -> tuple[list[int], int, int]:
        """(totals, tokens of the last minute, sequences that run), as the other frontend sees them."""
        tokens = sum(amount for _, amount in self.second.window(KEY, NOW, True))
        return self.second.totals(KEY)[:3], tokens, len(self.second.running(KEY))


def test_a_charge() -> None:
    scene = Scene()
    assert scene.used() == ([0, 0, 0], 0, 1) and scene.asked() == 1
    scene.first.charge(scene.ref, 5, 11, NOW)
    scene.first.charge(scene.ref, 5, 11, NOW)  # its end is told again
    assert scene.used() == ([1, 5, 11], 16, 0)
    scene.begin(scene.second, make_ref(3, 2))
    scene.second.charge(make_ref(3, 2), 1, 2, NOW + 1)
    assert scene.used() == ([2, 6, 13], 19, 0) and scene.asked() == 2
    assert scene.second.totals(KEY - 1) == [0] * 8


def test_several_answers_to_one_prompt_pay_for_it_once() -> None:
    scene = Scene()
    other = make_ref(1, 0)
    scene.first.hold(other, Line(KEY, Flag.HELD, 1, NOW, 0))
    scene.first.charge(scene.ref, 5, 11, NOW)
    scene.first.charge(other, 5, 4, NOW)
    assert scene.used()[0] == [1, 5, 15]


def test_an_older_use_of_a_slot_is_not_charged() -> None:
    scene = Scene()
    scene.first.charge(make_ref(6, 1), 5, 11, NOW)
    assert scene.used() == ([0, 0, 0], 0, 1)


def test_a_minute_goes_by() -> None:
    scene = Scene()
    scene.first.charge(scene.ref, 5, 11, NOW)
    assert scene.second.window(KEY, NOW + 60, True) == [(NOW, 16)] and not scene.second.window(KEY, NOW + 61, True)
    scene.begin(scene.first, make_ref(8, 1))
    scene.first.charge(make_ref(8, 1), 1, 1, NOW + WINDOW)  # the same word
    assert scene.second.window(KEY, NOW + WINDOW, True) == [(NOW + WINDOW, 2)]


def test_a_death_while_a_sequence_is_charged() -> None:
    def charging(scene: Scene) -> Callable[[], object]:
        return lambda: scene.first.charge(scene.ref, 5, 11, NOW)

    states = set()
    for scene, _ in every_abort(Scene, charging, MODULES):
        reborn = scene.life(0)
        states.add(scene.used()[0][0])
        assert scene.used() in [(([0, 0, 0]), 0, 1), ([1, 5, 11], 16, 0)]
        reborn.charge(scene.ref, 5, 11, NOW)
        assert scene.used() == ([1, 5, 11], 16, 0) and scene.asked() == 1
    assert states == {0, 1}


def test_a_death_while_a_request_is_let_in() -> None:
    """It is read again, and let in once more: it counts once."""
    new = make_ref(9, 0)

    def beginning(scene: Scene) -> Callable[[], object]:
        return lambda: scene.begin(scene.first, new)

    states = set()
    for scene, _ in every_abort(Scene, beginning, MODULES):
        reborn = scene.life(0)
        states.add(scene.asked())
        assert (scene.asked(), scene.used()[2]) in [(1, 1), (2, 2)]
        reborn.drop(new, NOW)
        assert scene.asked() == 1 and scene.used() == ([0, 0, 0], 0, 1)
        scene.begin(reborn, make_ref(10, 0))
        reborn.charge(make_ref(10, 0), 1, 1, NOW)
        reborn.charge(scene.ref, 5, 11, NOW)
        assert scene.used() == ([2, 6, 12], 18, 0) and scene.asked() == 2
    assert states == {1, 2}


def test_a_death_while_what_nobody_wants_is_dropped() -> None:
    def dropping(scene: Scene) -> Callable[[], object]:
        return lambda: scene.first.drop(scene.ref, NOW)

    for scene, _ in every_abort(Scene, dropping, MODULES):
        reborn = scene.life(0)
        reborn.drop(scene.ref, NOW)
        assert scene.asked() == 0 and scene.used() == ([0, 0, 0], 0, 0)


def test_a_request_that_was_refused_by_its_content_still_counts_for_the_minute() -> None:
    scene = Scene()
    scene.first.drop(scene.ref, NOW, refund=False)
    assert scene.asked() == 1 and scene.used() == ([0, 0, 0], 0, 0)


def test_what_is_let_in_without_room_is_taken_back() -> None:
    scene = Scene()
    scene.first.admit(KEY, NOW)
    assert scene.asked() == 2
    scene.first.withdraw()
    assert scene.asked() == 1 and scene.used()[2] == 1


def test_one_at_a_time_lets_requests_of_a_key_in() -> None:
    scene = Scene()
    assert scene.first.lock(KEY) and not scene.second.lock(KEY) and scene.second.lock(KEY - 1)
    scene.first.unlock(KEY)
    assert scene.second.lock(KEY)
    reborn = scene.life(1)
    assert not reborn.lock(KEY)
    del scene.second
    assert reborn.lock(KEY), "a dead one's lock is gone with it"


def test_reservations() -> None:
    scene = Scene()
    assert [line.reserved for _, line in scene.second.running(KEY)] == [30]
    scene.first.reserve(scene.ref, 12)
    assert [line.reserved for _, line in scene.second.running(KEY)] == [12]
    scene.first.refuse(KEY, Total.REFUSED_BUDGET)
    assert scene.second.totals(KEY)[Total.REFUSED_BUDGET] == 1
