"""A writer of the request table dies before any one bytecode; another process looks, and the work is done again."""

from __future__ import annotations

from collections.abc import Callable

from actorserve.shm.table import layout, table
from actorserve.shm.table.table import generation_of

from ..aborting import every_abort
from .table_maker import SLOTS, hashes_of, new_table, other_view

MODULES = (table, layout)


class Scene:
    """A sequence in the middle of its life."""

    def __init__(self) -> None:
        self.table = new_table()
        self.ref = self.table.open_slot(1, b"old", 1)
        self.table.write_prompt(self.ref, [1, 2, 3], b"", 9)
        self.table.append(self.ref, [10, 11])


def test_while_a_slot_is_opened() -> None:
    outcomes = set()
    for scene, _ in every_abort(Scene, lambda s: lambda: s.table.open_slot(1, b"newer", 2), MODULES):
        seen, old = other_view(scene.table), scene.ref
        (current,) = seen.current_refs(0, SLOTS)
        assert seen.params(current) == b"newer" if current != old else seen.params(old) in (b"old", b"")
        assert list(seen.token_ids(old, 0, 5)) == [1, 2, 3, 10, 11] and seen.generated(old) == 2
        again = seen.open_slot(1, b"newest", 3)
        assert generation_of(again) == generation_of(current) + 1
        assert seen.params(again) == b"newest" and seen.prompt_length(again) is None
        outcomes.add(current == old)
    assert outcomes == {False, True}


def test_while_a_prompt_is_written() -> None:
    prompt, outcomes = list(range(50, 66)), set()

    def opened() -> Scene:
        scene = Scene()
        scene.ref = scene.table.open_slot(1, b"", 2)
        return scene

    def writing(scene: Scene) -> Callable[[], object]:
        return lambda: scene.table.write_prompt(scene.ref, prompt, hashes_of(2), 7)

    for scene, _ in every_abort(opened, writing, MODULES):
        seen = other_view(scene.table)
        length = seen.prompt_length(scene.ref)
        outcomes.add(length)
        if length is not None:
            assert list(seen.token_ids(scene.ref, 0, length)) == prompt
            assert seen.hashes(scene.ref) == hashes_of(2) and seen.limit(scene.ref) == 7
        seen.write_prompt(scene.ref, prompt, hashes_of(2), 7)  # the message is delivered again
        assert list(seen.token_ids(scene.ref, 0, 16)) == prompt
    assert outcomes == {None, 16}


def test_while_tokens_are_appended_and_the_sequence_ends() -> None:
    def ending(scene: Scene) -> Callable[[], object]:
        def end() -> None:
            scene.table.append(scene.ref, [12, 13])
            scene.table.set_finish(scene.ref, 1)

        return end

    outcomes = set()
    for scene, _ in every_abort(Scene, ending, MODULES):
        seen = other_view(scene.table)
        finish, generated = seen.finish(scene.ref), seen.generated(scene.ref)
        assert list(seen.token_ids(scene.ref, 0, 3 + generated)) == [1, 2, 3, 10, 11, 12, 13][: 3 + generated]
        outcomes.add((generated, finish))
    assert outcomes == {(2, 0), (4, 0), (4, 1)}


def test_while_cursors_move() -> None:
    def moving(scene: Scene) -> Callable[[], object]:
        def move() -> None:
            scene.table.set_text(scene.ref, 2)
            scene.table.set_stop(scene.ref, 1)
            scene.table.set_cached(scene.ref, 3)
            scene.table.cancel(scene.ref)

        return move

    outcomes = []
    for scene, _ in every_abort(Scene, moving, MODULES):
        seen, ref = other_view(scene.table), scene.ref
        state = (seen.text(ref), seen.stop(ref), seen.cached(ref), seen.is_cancelled(ref))
        if state not in outcomes:
            outcomes.append(state)
    full = (2, 1, 3, True)
    assert outcomes == [full[:moved] + (0, 0, 0, False)[moved:] for moved in range(5)]
