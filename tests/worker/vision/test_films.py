"""What the worker computes of films: the logits of transformers' whole model, wherever prompts are cut."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from actorserve.actors.protocol.media import IMAGE, VIDEO, MediaItem
from actorserve.actors.worker.vision.encoder import Owner
from tests.support.models.vision.families import ADAPTED, EVERY, FAMILIES, checkpoint
from tests.support.models.vision.reference import Prompt, Reference, Source, assert_same, picture
from tests.support.selection import slow
from tests.worker.driver import Sequence, config_for, make_runner

from .test_pictures import ANSWER, TEXT, Seeing

GRID = (3, 4, 6)  # patches of time, height and width; four of a time are one
INTERNVL = [family for family in FAMILIES if family.startswith("internvl")]
OF_PICTURES = (*INTERNVL, "smolvlm")  # whose frames are pictures
NUMBERS = 3 * 2 * 4 * 4  # of a patch


def film_of(family: str) -> dict[str, Any]:
    """Tensors of a film at random."""
    numbers = np.random.default_rng(7)
    if family in OF_PICTURES:
        return {"pixel_values": numbers.standard_normal((3, 3, 16, 16), np.float32)}
    if family in ADAPTED:  # six embeddings each, and patches of none for one more
        places = np.full((3, 28, 2), -1)
        places[:, :24] = np.argwhere(np.ones(GRID[1:]))[:, ::-1]
        pixels = numbers.random((3, 28, NUMBERS // 2), np.float32)
        return {"pixel_values_videos": pixels, "video_position_ids": places, "num_frames_per_video": np.array([3])}
    found: dict[str, Any] = {"pixel_values_videos": numbers.standard_normal((int(np.prod(GRID)), NUMBERS), np.float32)}
    found["video_grid_thw"] = np.array([GRID])
    return found | ({"second_per_grid_ts": np.array([1.5], np.float32)} if family == "qwen2_5_vl" else {})


def parts_of(family: str, token: int) -> list[list[int]]:
    """The film's tokens: those of all times together, or each with a text before."""
    if family in ("qwen2_vl", "qwen2_5_vl"):
        return [[token] * 18]
    one = 4 if family in OF_PICTURES else 6
    return [[30 + number, 31, *[token] * one] for number in range(GRID[0])]


def with_film(reference: Reference, family: str) -> tuple[Prompt, list[Any]]:
    """A film behind a picture, and (modality, start, length, tensors) of each."""
    config = reference.model.config
    token = reference.place if family in OF_PICTURES else int(config.video_token_id)
    plain = reference.prompt(TEXT[:4], picture(3, 24, 32), TEXT[4:8])
    shown = [part for parts in parts_of(family, token) for part in parts]
    first = len(plain.ids) + shown.index(token)
    ids = plain.ids + shown + TEXT
    last = len(plain.ids) + len(shown)
    tensors = film_of(family)
    inputs = {name: value for name, value in plain.inputs.items() if name != "mm_token_type_ids"}
    given = {name: torch.from_numpy(value) for name, value in tensors.items()}
    if family in INTERNVL:
        inputs["pixel_values"] = torch.cat([inputs["pixel_values"], given["pixel_values"]])
    elif family == "smolvlm":  # all of one prompt together
        inputs["pixel_values"] = torch.cat([inputs["pixel_values"], given["pixel_values"][None]], 1)
        inputs["pixel_attention_mask"] = torch.ones_like(inputs["pixel_values"][:, :, 0], dtype=torch.long)
    else:
        kinds = [2 if one == token else int(one == reference.place) for one in ids]
        inputs |= given | {"mm_token_type_ids": torch.tensor([kinds])}
    (_, start, length, of_picture) = plain.pictures[0]
    items = [(IMAGE, start, length, of_picture), (VIDEO, first, last - first, tensors)]
    return Prompt(ids, [], inputs), items


def items_of(source: Source, items: list[Any]) -> list[MediaItem]:
    return [
        MediaItem(kind, bytes([number]) * 16, start, length, [source._tensor(*one) for one in tensors.items()])
        for number, (kind, start, length, tensors) in enumerate(items)
    ]


FILMED = [family for family in EVERY if EVERY[family].film]
QUICK = "qwen3_vl", "internvl", "gemma4"


@pytest.mark.parametrize("family", [*QUICK, *slow(*(family for family in FILMED if family not in QUICK))])
def test_logits_are_those_of_the_whole_model_wherever_films_are_cut(family: str, tmp_path: Path) -> None:
    folder = checkpoint(family, tmp_path)
    reference = Reference(family, folder)
    prompt, items = with_film(reference, family)
    source = Source()
    source.of_slot[0] = items_of(source, items)
    driver = Seeing(make_runner(config_for(folder, device="cpu"), source=source), budget=9, preempt=0.2, seed=2)
    sequence = Sequence(prompt.ids, ANSWER)
    driver.spans[id(sequence.prompt)] = [(start, start + length) for _, start, length, _ in items]
    tokens, _ = driver.run([sequence, Sequence(TEXT * 2, ANSWER)])
    assert_same(reference, prompt, tokens, driver.logits[0])
    assert driver.cuts


@pytest.mark.parametrize("family", [*QUICK, *slow(*(family for family in FILMED if family not in QUICK))])
def test_pieces_of_a_film_have_the_embeddings_of_the_whole(family: str, tmp_path: Path) -> None:
    """At once, and layer by layer beside other steps."""
    folder, source = checkpoint(family, tmp_path), Source()
    film = items_of(source, with_film(Reference(family, folder), family)[1])[1]
    runner = make_runner(config_for(folder, device="cpu"), source=source)
    assert runner.vision is not None
    encoder, owner = runner.vision.encoder, Owner(0, 1)
    with torch.inference_mode():
        wanted = encoder._make(film, owner)
        function, names = encoder._function("get_video_features")
        asked = Mock(side_effect=function)
        encoder._functions = dict.fromkeys(encoder._functions, (asked, names))
        encoder.most_numbers = 2 * next(iter(film_of(family).values())).size // 3  # of three frames
        for share in (0.0, 0.3, 0.6, 0.9):
            encoder.look(film, owner, share)
            assert asked.call_count == 1 + (share > 0.5)
        found = encoder.embeddings(film, owner)
    assert asked.call_count == 2
    for one, other in zip((wanted.rows, *wanted.deepstack), (found.rows, *found.deepstack), strict=True):
        torch.testing.assert_close(one, other)
