"""What the worker computes of pictures: the logits of transformers' whole model, however prompts are cut."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from actorserve.actors.worker.speculative.ngram import NgramProposer
from actorserve.actors.worker.vision.encoder import EmbeddingCache, Embeddings
from tests.support.models.vision.families import ADAPTED, EVERY, FAMILIES, checkpoint
from tests.support.models.vision.reference import Reference, Source, assert_same, picture
from tests.support.selection import slow
from tests.worker.driver import Driver, Sequence, config_for, make_runner

TEXT = [*range(3, 22)]
ANSWER = 6
Made = Callable[[str], tuple[Reference, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A family's tiny model, by transformers and as a folder."""
    root = tmp_path_factory.mktemp("vision")
    known: dict[str, tuple[Reference, Path]] = {}

    def find(family: str) -> tuple[Reference, Path]:
        if family not in known:
            folder = checkpoint(family, root)
            known[family] = Reference(family, folder), folder
        return known[family]

    return find


class Seeing(Driver):
    """Takes down logits of all positions, by slot; cuts no picture whose tokens see one another."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.logits: dict[int, dict[int, torch.Tensor]] = {}
        self.cuts = 0  # in pictures
        self.mixed = 0  # steps of rows with pictures and others
        assert self.runner.vision is not None
        self.vision, self.source = self.runner.vision, cast(Source, self.runner.vision.encoder.source)
        self.spans: dict[int, list[tuple[int, int]]] = {}  # of pictures, by prompts
        forward = self.runner._forward

        def seen(inputs: Any, rows: Any, starts: Any, counts: Any) -> torch.Tensor:
            hidden = forward(inputs, rows, starts, counts)
            logits, first = self.runner.model.logits(hidden.clone()), 0
            for row, start, count in zip(rows.tolist(), starts.tolist(), counts.tolist(), strict=True):
                slot = int(self.runner.slot[row])
                own = self.logits.setdefault(slot, {})
                own |= {start + at: logits[first + at] for at in range(count)}
                first += count
            slots = {int(self.runner.slot[row]) for row in rows.tolist()}
            self.mixed += 0 < sum(slot in self.source.of_slot for slot in slots) < len(slots)
            return hidden

        self.runner._forward = seen  # type: ignore[method-assign]

    def cut(self, sequence: Sequence, count: int) -> int:
        end = sequence.computed + count
        inside = [span for span in self.spans.get(id(sequence.prompt), []) if span[0] < end < span[1]]
        if not inside:
            return count
        self.cuts += 1
        return count if not self.vision.spec.whole_pictures else inside[0][1] - sequence.computed


def run(made: Made, family: str, preempt: float = 0.0, count: int = 3, budget: int = 12, **options: Any) -> Seeing:
    """So many of these: two pictures, a text, one picture; compared with transformers."""
    reference, folder = made(family)
    source = Source()
    prompts = [
        reference.prompt(TEXT[:5], picture(0), TEXT[5:9], picture(1, 24, 52), TEXT),
        reference.prompt(TEXT * 3),
        reference.prompt(picture(2, 30, 30), TEXT),
    ][:count]
    source.add(0, prompts[0])
    if count > 2:
        source.add(2, prompts[2])
    runner = make_runner(config_for(folder, device="cpu", **options), source=source)
    driver = Seeing(runner, budget=budget, preempt=preempt, seed=3)
    sequences = [Sequence(prompt.ids, ANSWER) for prompt in prompts]
    for sequence, prompt in zip(sequences, prompts, strict=True):
        driver.spans[id(sequence.prompt)] = [(start, start + length) for _, start, length, _ in prompt.pictures]
    found = driver.run(sequences)
    for slot, (prompt, tokens) in enumerate(zip(prompts, found, strict=True)):
        assert_same(reference, prompt, tokens, driver.logits[slot])
    return driver


def test_experts_lie_as_they_were_published(made: Made, tmp_path: Path) -> None:
    """Those of Qwen3-VL have columns before rows, which transformers turns when it reads them."""
    reference, folder = made("qwen3_vl_moe")
    turned = Path(shutil.copytree(folder, tmp_path / "turned"))
    tensors = load_file(turned / "model.safetensors")
    names = [name for name in tensors if ".mlp.experts." in name]
    assert len(names) == 6
    tensors |= {name: tensors[name].transpose(1, 2).contiguous() for name in names}
    save_file(tensors, turned / "model.safetensors", {"format": "pt"})
    run(lambda family: (reference, turned), "qwen3_vl_moe")


@pytest.mark.parametrize("family", EVERY)
def test_logits_are_those_of_the_whole_model_wherever_prompts_are_cut(family: str, made: Made) -> None:
    driver = run(made, family)
    assert driver.cuts and driver.mixed


@pytest.mark.parametrize("family", ["qwen3_vl", *slow("gemma3")])
def test_a_preempted_row_is_computed_again_from_its_slot(family: str, made: Made) -> None:
    driver = run(made, family, preempt=0.3)
    assert driver.steps > 40


@pytest.mark.parametrize("family", ADAPTED)
def test_by_layers_of_transformers_too(family: str, made: Made) -> None:
    assert run(made, family, preempt=0.3, budget=80).steps > run(made, family, budget=80).steps


@pytest.mark.parametrize("family", ["qwen3_vl", *slow(*(one for one in FAMILIES if one not in ("qwen3_vl", "gemma3")))])
def test_bits_are_the_same_alone_and_in_a_crowd(family: str, made: Made) -> None:
    """With --deterministic: each picture is computed by itself, and so its embeddings are the same bits."""
    crowd = run(made, family, preempt=0.3, deterministic=True)
    alone = run(made, family, count=1, budget=1000, deterministic=True)
    assert crowd.cuts and crowd.mixed
    for at, logits in alone.logits[0].items():
        assert torch.equal(crowd.logits[0][at], logits)


@pytest.mark.parametrize("family", ["qwen2_5_vl", "gemma3", "gemma4", "gemma4_together"])
def test_by_kernels_of_our_own(family: str, made: Made, native_kernels: None) -> None:
    run(made, family)


def test_pictures_are_encoded_once_and_again_where_there_is_no_room(made: Made) -> None:
    kept = run(made, "qwen3_vl").vision.encoder.cache
    assert (len(kept), kept.queries - kept.hits) == (3, 3)
    assert kept.size == sum(own.size for own in kept._kept.values())
    none = run(made, "qwen3_vl", encoder_cache_gb=1e-9).vision.encoder.cache
    assert not len(none) and none.size == none.hits == 0 and none.queries > 3


def test_the_cache_lets_go_of_what_was_not_used_for_longest() -> None:
    def rows(count: int) -> Embeddings:
        return Embeddings(torch.zeros(count, 4), (torch.zeros(count, 4),))

    cache = EmbeddingCache(most=3 * 32)
    for digest in (b"a", b"b", b"c"):
        cache.put(digest, rows(1))
    assert cache.get(b"a") is not None
    cache.put(b"d", rows(2))
    assert [digest for digest in (b"a", b"b", b"c", b"d") if cache.get(digest)] == [b"a", b"d"]
    cache.put(b"e", rows(4))  # larger than all room
    assert cache.size == 96 and len(cache) == 2 and cache.get(b"e") is None
    assert cache.clear() == 2 and cache.size == 0


def test_drafts_of_text_are_right_behind_pictures(made: Made) -> None:
    reference, folder = made("qwen2_5_vl")
    source = Source()
    prompt = reference.prompt(TEXT, picture(0), [5, 6, 7] * 6)
    source.add(0, prompt)
    runner = make_runner(config_for(folder, device="cpu"), source=source, proposer=NgramProposer(1, 3))
    driver = Driver(runner, budget=16, drafts=4, seed=1)
    (tokens,) = driver.run([Sequence(prompt.ids, 40)])
    assert tokens == reference.generate(prompt, 40)
    assert driver.drafted


@pytest.mark.parametrize("family", ["qwen3_vl", "llava"])
def test_embeddings_may_come_with_the_request(family: str, made: Made) -> None:
    reference, folder = made(family)
    prompt = reference.prompt(TEXT, picture(0), TEXT)
    (digest, start, length, tensors) = prompt.pictures[0]
    with torch.inference_mode():
        features = reference.model.model.get_image_features(**reference.pixels(picture(0)))
    rows = torch.cat([part.reshape(-1, 64) for part in features.pooler_output])
    deepstack = [torch.cat(list(part)) for part in getattr(features, "deepstack_features", None) or ()]
    given = {name: value for name, value in tensors.items() if name != "pixel_values"}
    given["image_embeds"] = torch.cat([rows, *deepstack], -1).numpy()
    source = Source()
    source.add(0, prompt._replace(pictures=[(digest, start, length, given)]))
    driver = Seeing(make_runner(config_for(folder, device="cpu"), source=source), budget=7)
    (tokens,) = driver.run([Sequence(prompt.ids, ANSWER)])
    assert_same(reference, prompt, tokens, driver.logits[0])


@pytest.mark.parametrize(
    ("tensors", "reason"),
    [
        ({"pixel_values": np.zeros((4, 7), np.float32)}, "encoder does not take it"),
        ({"image_embeds": np.zeros((20, 63), np.float32)}, "rows have 63 numbers, 64 or 192 are needed"),
        ({"image_embeds": np.full((20, 64), np.nan, np.float32)}, "infinite or none"),
        ({"image_embeds": np.zeros((19, 64), np.float32)}, "19 embeddings, and the prompt has room for 20"),
    ],
)
def test_an_item_that_makes_no_embeddings_fails_its_own_row_alone(
    tensors: dict[str, Any], reason: str, made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    reference, folder = made("qwen3_vl")
    good, bad = reference.prompt(TEXT, picture(0), TEXT), reference.prompt(TEXT, picture(1), TEXT)
    (digest, start, length, own) = bad.pictures[0]
    grid = {"image_grid_thw": own["image_grid_thw"]}
    source = Source()
    source.add(0, good)
    source.add(1, bad._replace(pictures=[(digest, start, length, tensors | grid)]))
    runner = make_runner(config_for(folder, device="cpu"), source=source)
    failed: set[int] = set()
    computed: list[int] = []
    driver = Driver(runner, budget=12)
    account = driver._account

    def seen(*about: Any) -> None:
        failed.update(int(runner.slot[~row]) for row in runner.failed_rows)
        computed.extend(int(runner.computed[~row]) for row in runner.failed_rows)
        account(*about)

    driver._account = seen  # type: ignore[method-assign, assignment]
    tokens, _ = driver.run([Sequence(good.ids, ANSWER), Sequence(bad.ids, ANSWER)])
    assert failed == {1} and reason in caplog.text
    assert computed[0] < start + length, "the first step that needs the picture tells of it"
    assert tokens == reference.generate(good, ANSWER)
