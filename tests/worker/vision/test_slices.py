"""A picture's embeddings in parts: the same as at once, whoever else is computed meanwhile."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from actorserve.actors.protocol.media import IMAGE
from actorserve.actors.worker.vision.encoder import Owner
from actorserve.actors.worker.vision.slices import MOST, Work
from tests.support.models.vision.families import EVERY
from tests.support.models.vision.reference import Source, picture
from tests.worker.driver import config_for, make_runner

from .test_pictures import TEXT, Made, made

__all__ = ["made"]


def towers() -> int:
    """Threads that compute pictures; others may end at any time."""
    return sum(thread.name == "tower" for thread in threading.enumerate())


@pytest.mark.parametrize("family", EVERY)
def test_parts_make_what_the_whole_makes(family: str, made: Made) -> None:
    reference, folder = made(family)
    source = Source()
    prompt = reference.prompt(TEXT, picture(0), TEXT, picture(1, 24, 52), TEXT)
    source.add(0, prompt)
    runner = make_runner(config_for(folder, device="cpu"), source=source)
    assert runner.vision is not None
    encoder, owner = runner.vision.encoder, Owner(0, 1)
    items = source.of_slot[0]
    with torch.inference_mode():
        wanted = [encoder._make(item, owner) for item in items]
        before = towers()
        for share in (0.0, 0.1, 0.3, 0.3, 0.6, 0.9):
            for item in items:
                encoder.look(item, owner, share)
        parts = encoder._slices(IMAGE)
        assert parts.layers >= 2 and towers() == before + 2 and not len(encoder.cache)
        found = [encoder.embeddings(item, owner) for item in items]
    for one, other in zip(wanted, found, strict=True):
        assert torch.equal(one.rows, other.rows)
        assert all(map(torch.equal, one.deepstack, other.deepstack)) and len(one.deepstack) == len(other.deepstack)
    assert not parts._works and len(encoder.cache) == 2
    encoder.look(items[0], owner, 0.5)
    assert not parts._works  # it is there


def test_what_nobody_wants_is_dropped_and_an_error_is_the_asker_s(made: Made) -> None:
    reference, folder = made("qwen3_vl")
    source = Source()
    for slot in range(MOST + 3):
        source.add(slot, reference.prompt(TEXT, picture(slot), TEXT))
    runner = make_runner(config_for(folder, device="cpu"), source=source)
    assert runner.vision is not None
    encoder = runner.vision.encoder
    before = towers()
    with torch.inference_mode():
        for slot in range(MOST + 2):
            encoder.look(source.of_slot[slot][0], Owner(slot, 1), 0.5)
        assert towers() == before + MOST
        gone, item = MOST + 2, source.of_slot[MOST + 2][0]
        source.gone.add(gone)
        encoder.look(item, Owner(gone, 1), 0.5)  # its request has ended: another one with the same picture has not
        made_anyway = encoder.embeddings(item, Owner(0, 1))
        assert torch.equal(made_anyway.rows, encoder._make(item, Owner(0, 1)).rows)
        first = source.of_slot[0][0]
        assert torch.equal(encoder.embeddings(first, Owner(0, 1)).rows, encoder._make(first, Owner(0, 1)).rows)


def test_what_failed_holds_nothing_of_what_was_computed() -> None:
    """Until Python looks for cycles: on a GPU the next try would not have that memory."""
    computed: list[weakref.ref[torch.Tensor]] = []

    def fail() -> None:
        activation = torch.zeros(3)
        computed.append(weakref.ref(activation))
        try:
            raise ValueError("inside")
        except ValueError as error:
            raise torch.OutOfMemoryError("CUDA out of memory") from error

    work = Work(fail, lambda own: None, torch.device("cpu"))
    gc.disable()
    try:
        work.advance(1)
        assert computed[0]() is None
        with pytest.raises(torch.OutOfMemoryError):
            work.result(1)
        own = weakref.ref(work)
        del work
        assert own() is None
    finally:
        gc.enable()


def test_a_tower_computes_on_the_device_of_who_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever that is called; where it cannot be had, who waits hears it."""
    taken: list[int] = []
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 3)
    monkeypatch.setattr(torch.cuda, "set_device", taken.append)
    work = Work(lambda: 5, lambda own: None, torch.device("cuda"))
    assert work.result(1) == 5 and taken == [3]

    def refuse(device: int) -> None:
        raise RuntimeError("CUDA error: invalid device ordinal")

    monkeypatch.setattr(torch.cuda, "set_device", refuse)
    work = Work(lambda: 5, lambda own: None, torch.device("cuda"))
    work._may_pass = 1
    work._run()  # what its thread does
    with pytest.raises(RuntimeError, match="invalid device ordinal"):
        work.result(1)
