"""Steps with pictures in them: by graphs, started ahead, behind cached prefixes, beside rows without, and on a device
that is pretended."""

from __future__ import annotations

from copy import copy, deepcopy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model

from ..test_runner import DEVICE, GpuDriver, steps_of  # isort: skip  # before kernels are imported

from actorserve.actors.model.info import resolve_model
from actorserve.actors.model.lora.adapter import read_adapter
from actorserve.actors.protocol.media import IMAGE
from actorserve.actors.protocol.step import LOOKS, NewRow, Step
from actorserve.actors.worker.gpu.graphs import StepSize
from actorserve.actors.worker.gpu.layers.fused import FusedLayers
from actorserve.actors.worker.gpu.lora.sites import GpuLoraSites
from actorserve.actors.worker.gpu.lora.start import make_maker
from actorserve.actors.worker.gpu.runner import GpuRunner
from actorserve.kernels.triton.drafts import Lookup
from actorserve.shm.table.table import make_ref
from tests.support.gpu import pretended_device
from tests.support.gpu.pretended_device import on_the_host, pretended
from tests.support.models.vision.reference import Prompt, Reference, Source, assert_same, picture
from tests.support.selection import slow

from ...driver import GREEDY, Sequence, config_for
from .. import test_runner
from .seeing import ANSWER, TEXT, Cutting, Made, Seeing, make_runner, prompts_of


@pytest.mark.parametrize("family", ["qwen2_5_vl", *slow("gemma3", "granite_vision", "llava")])
def test_graphs_hold_it(family: str, made: Made) -> None:
    """They were captured when there was no picture, and nothing of the host runs in them."""
    reference, folder = made(family)
    source = Source()
    prompts = prompts_of(reference, source)
    runner = make_runner(folder, source, capture=True)
    replayed = steps_of(runner)
    driver = Cutting(runner, budget=20, seed=1)
    found = driver.run(driver.asked(prompts, ANSWER))
    assert found == [reference.generate(prompt, ANSWER) for prompt in prompts]
    assert {type(size) for size in replayed} == {int, StepSize}


def test_small_steps_by_products_of_our_own(made: Made) -> None:
    """What is added behind the first layers is added there, too."""
    reference, folder = made("qwen3_vl")
    source = Source()
    prompt = reference.prompt(TEXT[:3], picture(0, 24, 24), TEXT[:3])
    source.add(0, prompt)
    runner = make_runner(folder, source, graphs=False)
    runner.model.fused = FusedLayers.of(runner.model.layers, DEVICE)
    assert runner.model.fused is not None
    driver = Seeing(runner, budget=4, seed=1)
    (tokens,) = driver.run([Sequence(prompt.ids, ANSWER)])
    assert_same(reference, prompt, tokens, driver.logits[0])


def launched(runner: GpuRunner, number: int, new: list[NewRow], rows: list[int], counts: list[int], **more: Any) -> Any:
    return runner.launch(Step.make(1, number, new, rows, counts, **more))


def placed(row: int, slot: int, prompt: Prompt, computed: int, blocks: list[int]) -> NewRow:
    return NewRow.make(row, make_ref(1, slot), len(prompt.ids), len(prompt.ids), computed, blocks, GREEDY)


@pytest.mark.parametrize("family", ["qwen2_vl", *slow("llava")])
def test_a_prefix_that_ends_in_a_picture_is_found(family: str, made: Made) -> None:
    """Beside the row that has computed it, which decodes; a picture's last token ends another prompt, and is a chunk by
    itself; none of the steps is waited for before the next is started."""
    reference, folder = made(family)
    source = Source()
    prompt = reference.prompt(TEXT[:8], picture(0), TEXT[:6])
    short = reference.prompt(TEXT[:4], picture(1, 24, 24))
    for slot, own in enumerate((prompt, prompt, short)):
        source.add(slot, own)
    runner = make_runner(folder, source)
    driver = Seeing(runner)
    (_, start, length, _) = prompt.pictures[0]
    assert start < 16 < start + length
    for slot, own in enumerate((prompt, prompt, short)):
        runner.log[slot, : len(own.ids)] = own.ids
    count, other = len(prompt.ids), len(short.ids)
    with torch.inference_mode():
        first = [placed(0, 0, prompt, 0, [3, 4, 5]), placed(2, 2, short, 0, [9, 10])]
        started = [launched(runner, 1, first, [0, 2], [count, other - 1])]
        more = [placed(1, 1, prompt, 16, [3, 6, 7])]
        started.append(launched(runner, 2, more, [0, 2, 1], [1, 1, count - 16]))
        started.append(launched(runner, 3, [], [0, 1, 2], [1, 1, 1]))
        found = [runner.finish(one).tolist() for one in started]
    (one,), (two, of_short, of_other), last = found
    drawn = [(prompt, 0, [one, two, last[0]]), (prompt, 16, [of_other, last[1]]), (short, 0, [of_short, last[2]])]
    for slot, (own, begin, tokens) in enumerate(drawn):
        wanted = reference.logits(own, tokens[:-1])
        assert sorted(driver.logits[slot]) == list(range(begin, len(wanted)))
        for at, logits in driver.logits[slot].items():
            assert float((logits - wanted[at]).abs().max() / wanted.abs().max()) < 2e-5, (slot, at)
        assert tokens == wanted[len(own.ids) - 1 :].argmax(-1).tolist()


def test_rows_without_pictures_cost_nothing_more(made: Made) -> None:
    """Nothing of pictures is sent for them, also behind steps that had some."""
    reference, folder = made("qwen3_vl")
    source = Source()
    seen, plain = reference.prompt(picture(0, 24, 24), TEXT[:3]), reference.prompt(TEXT)
    source.add(0, seen)
    runner = make_runner(folder, source)
    pictures = runner.pictures
    assert pictures is not None
    for slot, prompt in enumerate((seen, plain)):
        runner.log[slot, : len(prompt.ids)] = prompt.ids
    sent: list[tuple[int, int]] = []

    def tell(buffers: Any) -> Any:
        send = type(buffers).send_pictures

        def noted(target: Any, begin: int, end: int) -> None:
            sent.append((begin, end))
            send(buffers, target, begin, end)

        buffers.send_pictures = noted
        return buffers

    take = runner._buffers.take
    runner._buffers.take = lambda: tell(take())  # type: ignore[method-assign]
    with torch.inference_mode():
        runner.finish(launched(runner, 1, [placed(0, 0, seen, 0, [1, 2])], [0], [len(seen.ids)]))
        assert len(sent) == 2 and int((pictures._given._places >= 0).sum()) > 0 and pictures._numbers.any()
        runner.finish(launched(runner, 2, [], [0], [1]))
        assert len(sent) == 3 and sent[-1][1] - sent[-1][0] == 3, "a row behind a picture: three numbers"
        runner.finish(launched(runner, 3, [placed(1, 1, plain, 0, [3, 4])], [1], [len(plain.ids)]))
        runner.finish(launched(runner, 4, [], [1], [1]))
    assert len(sent) == 3
    assert bool((pictures._given._places == -1).all()) and not pictures._numbers[len(pictures._given._places) :].any()


def test_parts_of_a_picture_are_made_beside_rows_that_decode(made: Made) -> None:
    """Before the step that computes the first of its tokens, in a graph of decoding alone."""
    reference, folder = made("llava")
    source = Source()
    plain, seen = reference.prompt(TEXT), reference.prompt(TEXT[:3], picture(0), TEXT[:2])
    source.add(1, seen)
    runner = make_runner(folder, source)
    for slot, prompt in enumerate((plain, seen)):
        runner.log[slot, : len(prompt.ids)] = prompt.ids
    assert runner.pictures is not None
    encoder = runner.pictures.vision.encoder
    with torch.inference_mode():
        started = [launched(runner, 1, [placed(0, 0, plain, 0, [1, 2])], [0], [len(plain.ids)])]
        looks = [(1, 3, LOOKS // 2)]
        started.append(launched(runner, 2, [placed(1, 1, seen, 0, [3, 4])], [0], [1], looks=looks))
        assert [*encoder._slices(IMAGE)._works] == [seen.pictures[0][0]] and not len(encoder.cache)
        started.append(launched(runner, 3, [], [0, 1], [1, len(seen.ids)]))
        assert not encoder._slices(IMAGE)._works and len(encoder.cache) == 1
        found = [runner.finish(one).tolist() for one in started]
    assert [found[0][0], found[1][0], found[2][0]] == reference.generate(plain, 3)
    assert [found[2][1]] == reference.generate(seen, 1)


def test_drafts_of_text_are_right_behind_pictures(made: Made) -> None:
    reference, folder = made("qwen2_5_vl")
    source = Source()
    prompt = reference.prompt(TEXT[:4], picture(0, 24, 24), [5, 6, 7] * 4)
    source.add(0, prompt)
    runner = make_runner(folder, source, lookup=Lookup(1, 3, 3))
    driver = GpuDriver(runner, budget=32, drafts=3, seed=1)
    (tokens,) = driver.run([Sequence(prompt.ids, 12)])
    assert tokens == reference.generate(prompt, 12)
    assert driver.drafted


def test_adapters_change_the_text_part_alone(made: Made) -> None:
    """Without one in use the same is computed, by graphs of both kinds."""
    reference, folder = made("llava")
    source = Source()
    prompts = prompts_of(reference, source)
    runner = make_runner(folder, source, lora=GpuLoraSites(2, 8, DEVICE))
    driver = Cutting(runner, budget=40, seed=1)
    found = driver.run(driver.asked(prompts, 2))
    assert found == [reference.generate(prompt, 2) for prompt in prompts]


def adapted(reference: Reference, folder: Path) -> Reference:
    """With an adapter of its text part, which is saved there."""
    found, model = copy(reference), deepcopy(reference.model)
    targets = r".*language_model.*\.(q_proj|v_proj|o_proj|gate_proj|down_proj)"
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(1)
        found.model = get_peft_model(model, LoraConfig(r=4, target_modules=targets, init_lora_weights=False))
        for name, parameter in found.model.named_parameters():
            if "lora_" in name:
                parameter.data.normal_(0, 0.15)
    found.model.save_pretrained(str(folder))
    return found


@pytest.mark.parametrize("family", ["qwen2_5_vl", *slow("llava", "qwen3_vl", "gemma3")])
def test_an_adapter_in_use_beside_pictures(family: str, made: Made, tmp_path: Path) -> None:
    """Of a row with pictures and of one without, beside the same without it; the tower has none."""
    reference, folder = made(family)
    other, source = adapted(reference, tmp_path), Source()
    two, plain, _ = prompts_of(reference, source)
    source.add(1, two)
    prompts, adapters = [two, two, plain, plain], [1, 0, 1, 0]
    source.of_slot.pop(2)
    runner = make_runner(folder, source, lora=GpuLoraSites(2, 8, DEVICE), capture=True)
    given = config_for(folder, device="cpu", block_size=16, enable_lora=True, max_loras=2, max_lora_rank=8)
    assert runner.adapted is not None
    slot = runner.adapted.slots.take(1)
    assert slot is not None
    with torch.inference_mode():
        made_of = make_maker(given, resolve_model(given), runner.model).make(read_adapter(str(tmp_path), 8))
        runner.adapted.slots.write(slot, made_of)
    driver = Cutting(runner, budget=20, seed=1)
    sequences = driver.asked(prompts, ANSWER)
    for sequence, adapter in zip(sequences, adapters, strict=True):
        sequence.adapter = adapter
    found = driver.run(sequences)
    for prompt, adapter, tokens in zip(prompts, adapters, found, strict=True):
        own = other if adapter else reference
        assert tokens == own.logits(prompt, tokens[:-1])[len(prompt.ids) - 1 :].argmax(-1).tolist()
    assert found[0] != found[1] and found[2] != found[3]


def test_an_item_that_makes_no_embeddings_fails_its_own_row_alone(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    reference, folder = made("llava")
    good, bad = reference.prompt(TEXT[:4], picture(0), TEXT[:3]), reference.prompt(TEXT[:4], picture(1), TEXT[:3])
    (digest, start, length, _) = bad.pictures[0]
    source = Source()
    source.add(0, good)
    source.add(1, bad._replace(pictures=[(digest, start, length, {"pixel_values": np.zeros((4, 7), np.float32)})]))
    runner = make_runner(folder, source)
    for slot, prompt in enumerate((good, bad)):
        runner.log[slot, : len(prompt.ids)] = prompt.ids
    rows = [placed(0, 0, good, 0, [1, 2]), placed(1, 1, bad, 0, [3, 4])]
    with torch.inference_mode():
        tokens = runner.finish(launched(runner, 1, rows, [0, 1], [len(good.ids), start + 1]))
        assert runner.failed_rows == [~1] and "encoder does not take it" in caplog.text
        runner.finish(launched(runner, 2, [], [0], [1]))
        assert list(runner.failed_rows) == []
    assert tokens.tolist() == reference.generate(good, 1)


def test_embeddings_may_come_with_the_request(made: Made) -> None:
    """Without what is added behind the first layers, which is then nothing, whatever was there before."""
    reference, folder = made("qwen3_vl")
    source = Source()
    prompt = reference.prompt(TEXT[:3], picture(0, 24, 24), TEXT[:3])
    (digest, start, length, tensors) = prompt.pictures[0]
    with torch.inference_mode():
        features = reference.model.model.get_image_features(**reference.pixels(picture(0, 24, 24)))
    rows = torch.cat([part.reshape(-1, 64) for part in features.pooler_output])
    deepstack = [torch.cat(list(part)) for part in features.deepstack_features]
    given = {name: value for name, value in tensors.items() if name != "pixel_values"}
    source.add(0, prompt)
    whole = given | {"image_embeds": torch.cat([rows, *deepstack], -1).numpy()}
    source.add(1, prompt._replace(pictures=[(b"other", start, length, whole)]))
    source.add(2, prompt._replace(pictures=[(b"third", start, length, given | {"image_embeds": rows.numpy()})]))
    driver = Seeing(make_runner(folder, source), seed=1)
    found = driver.run([Sequence(prompt.ids, 2) for _ in range(3)])
    assert found[0] == found[1] == reference.generate(prompt, 2)
    last = len(prompt.ids) - 1
    assert not torch.allclose(driver.logits[2][last], driver.logits[0][last], rtol=1e-3)
    assert digest not in (b"other", b"third")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")
@pytest.mark.parametrize("family", ["llava", *slow("gemma3", "qwen3_vl", "llava_next", "mistral3")])
def test_on_a_pretended_device(family: str, made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor is of another device, and no step waits for it: not for its embeddings, nor for what it is told. But
    towers of pictures that differ in size ask the device for sizes."""
    reference, folder = made(family)
    source = Source()
    prompts = prompts_of(reference, source)
    with torch.inference_mode(False), pretended() as device:
        monkeypatch.setattr(test_runner, "DEVICE", pretended_device.DEVICE)
        runner = make_runner(folder, source, capture=True)
        launch = runner.launch

        def hurried(step: Step) -> Any:
            if family not in ("llava", "gemma3") and int(step.counts.max()) > 1:
                return launch(step)
            with device.hurrying():
                return launch(step)

        runner.launch = hurried  # type: ignore[method-assign]
        driver = Cutting(runner, budget=20, seed=1)
        found = driver.run(driver.asked(prompts, 2))
        with on_the_host():
            assert found == [reference.generate(prompt, 2) for prompt in prompts]
