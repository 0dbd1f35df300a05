"""What the worker computes of sounds in prompts: the logits of transformers' whole model, wherever prompts are cut."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from actorserve.actors.protocol.media import AUDIO, MediaItem
from tests.support.models.sounds.listeners import EVERY, Listening, listener
from tests.support.models.sounds.whispers import sound
from tests.support.models.vision.reference import Source
from tests.worker.driver import Sequence, config_for, make_runner

from .test_pictures import ANSWER, TEXT, Seeing


@pytest.mark.parametrize("kind", EVERY)
def test_logits_are_those_of_the_whole_model_wherever_sounds_are_cut(kind: str, tmp_path: Path) -> None:
    folder = listener(kind, tmp_path)
    compare(kind, Listening(kind, folder), folder)


def compare(kind: str, theirs: Listening, folder: Path, **options: object) -> None:
    """Two sounds in a prompt, beside a text alone."""
    sounds = [sound(1.3, 1), sound(0.8, 2) if kind == "qwen2_audio" else sound(3.1, 2)]
    inputs = theirs.inputs(*sounds)
    source = Source()
    ids, items = TEXT[:3], []
    for number, one in enumerate(sounds):
        given = theirs.inputs(one)
        own, count = {name: value.numpy() for name, value in given.items()}, theirs.count(given)
        tensors = [source._tensor(*about) for about in own.items()]
        items.append(MediaItem(AUDIO, bytes([number]) * 16, len(ids), count, tensors))
        ids = ids + [theirs.token] * count + TEXT[3:8]
    source.of_slot[0] = items
    driver = Seeing(
        make_runner(config_for(folder, device="cpu", **options), source=source), budget=9, preempt=0.2, seed=2
    )
    sequence = Sequence(ids, ANSWER)
    driver.spans[id(sequence.prompt)] = [(item.start, item.start + item.length) for item in items]
    tokens, _ = driver.run([sequence, Sequence(TEXT * 2, ANSWER)])
    wanted = theirs.logits(ids + tokens[:-1], inputs)
    found = torch.stack([driver.logits[0][at] for at in sorted(driver.logits[0])])
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 2e-5
    assert tokens == wanted[len(ids) - 1 :].argmax(-1).tolist() and driver.cuts
