"""What a GPU's worker computes of pictures, films and sounds: the logits of transformers' whole model, wherever prompts
are cut; on a GPU where there is one, else in the interpreter."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from .seeing import ANSWER, TEXT, Made, Seeing, make_runner, run  # isort: skip  # before kernels are imported

from actorserve.actors.protocol.media import AUDIO, MediaItem
from tests.support.models.sounds.listeners import EVERY, Listening, listener
from tests.support.models.sounds.whispers import sound
from tests.support.models.vision.families import FAMILIES
from tests.support.models.vision.reference import Source, assert_same
from tests.support.selection import slow

from ...driver import Sequence
from ...vision.test_films import with_film

QUICK = ("llava", "qwen3_vl", "gemma3", "gemma4")
SEEING = (*FAMILIES, "gemma4", "gemma4_together")


@pytest.mark.parametrize("family", [*QUICK, *slow(*(family for family in SEEING if family not in QUICK))])
def test_logits_are_those_of_the_whole_model_wherever_prompts_are_cut(family: str, made: Made) -> None:
    assert run(made, family).cuts


@pytest.mark.parametrize("family", ["llava", *slow("qwen3_vl", "gemma3", "gemma4_together")])
def test_a_preempted_row_is_computed_again_from_its_slot(family: str, made: Made) -> None:
    assert run(made, family, preempt=0.3).preempted


@pytest.mark.parametrize("family", slow("qwen3_vl", "llava", "gemma3"))
def test_steps_as_large_as_they_are(family: str, made: Made) -> None:
    """Without graphs, and without tokens that fill up."""
    run(made, family, graphs=False)


@pytest.mark.parametrize("family", ["llava", *slow("qwen2_5_vl", "qwen3_vl")])
def test_a_token_has_the_same_bits_in_every_batch(family: str, made: Made) -> None:
    """With --deterministic; each picture is computed by itself."""
    crowd, alone = (run(made, family, alone=alone, deterministic=True) for alone in (False, True))
    assert crowd.cuts
    for at, logits in alone.logits[0].items():
        assert torch.equal(crowd.logits[0][at], logits)


@pytest.mark.parametrize("family", ["qwen2_5_vl", *slow("qwen3_vl", "internvl", "smolvlm", "gemma4")])
def test_films(family: str, made: Made) -> None:
    """Times of which are further apart than their tokens."""
    reference, folder = made(family)
    prompt, items = with_film(reference, family)
    source = Source()
    source.of_slot[0] = [
        MediaItem(kind, bytes([number]) * 16, start, length, [source._tensor(*one) for one in tensors.items()])
        for number, (kind, start, length, tensors) in enumerate(items)
    ]
    driver = Seeing(make_runner(folder, source), budget=25, seed=2)
    tokens, _ = driver.run([Sequence(prompt.ids, ANSWER), Sequence(TEXT, ANSWER)])
    assert_same(reference, prompt, tokens, driver.logits[0])


@pytest.mark.parametrize("kind", ["qwen2_audio", *slow(*(kind for kind in EVERY if kind != "qwen2_audio"))])
def test_sounds(kind: str, tmp_path: Path) -> None:
    folder = listener(kind, tmp_path)
    theirs, source, one = Listening(kind, folder), Source(), sound(0.8, 2)
    inputs = theirs.inputs(one)
    count = theirs.count(inputs)
    tensors = [source._tensor(name, value.numpy()) for name, value in inputs.items()]
    ids = [*TEXT[:3], *[theirs.token] * count, *TEXT[3:8]]
    source.of_slot[0] = [MediaItem(AUDIO, bytes(16), 3, count, tensors)]
    driver = Seeing(make_runner(folder, source), budget=15, seed=2)
    tokens, _ = driver.run([Sequence(ids, 2), Sequence(TEXT, 2)])
    wanted = theirs.logits(ids + tokens[:-1], inputs)
    found = torch.stack([driver.logits[0][at] for at in sorted(driver.logits[0])])
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 2e-5
    assert tokens == wanted[len(ids) - 1 :].argmax(-1).tolist()
