"""What a GPU's worker computes of pictures: the logits of transformers' whole model, however prompts are cut; on a GPU
where there is one, else in the interpreter."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from msgspec import structs

from .test_runner import DEVICE, GpuDriver, load_model, make_gpu_runner, steps_of  # isort: skip  # before kernels are imported

from actorserve.actors.model.config_json import read_architecture
from actorserve.actors.model.info import read_json, resolve_model
from actorserve.actors.options.config import ConfigError
from actorserve.actors.protocol.media import AUDIO, MediaItem
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker import inspection
from actorserve.actors.worker.gpu import memory
from actorserve.actors.worker.gpu.executor import Hidden
from actorserve.actors.worker.gpu.graphs import StepSize
from actorserve.actors.worker.gpu.layers.fused import FusedLayers
from actorserve.actors.worker.gpu.lora.sites import GpuLoraSites
from actorserve.actors.worker.gpu.memory import RESERVE, kv_block_bytes
from actorserve.actors.worker.gpu.pictures import pictures_bytes
from actorserve.actors.worker.gpu.runner import GpuRunner
from actorserve.actors.worker.gpu.start import check_shape
from actorserve.actors.worker.vision.start import load_vision
from actorserve.kernels.triton.drafts import Lookup
from actorserve.shm.table.table import make_ref
from tests.support.gpu import pretended_device
from tests.support.gpu.pretended_device import on_the_host, pretended
from tests.support.models.sounds.listeners import KINDS, Listening, listener
from tests.support.models.sounds.whispers import sound
from tests.support.models.vision.families import FAMILIES, checkpoint
from tests.support.models.vision.reference import Prompt, Reference, Source, picture
from tests.support.selection import slow

from ..driver import GREEDY, Sequence, config_for
from ..vision.test_films import with_film
from . import test_runner

TEXT = [*range(3, 22)]
ANSWER = 3
LAYERS = {"gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"]}}
FEW = {"num_hidden_layers": 2}
QUICK = ("llava", "qwen3_vl", "gemma3")
Made = Callable[[str], tuple[Reference, Path]]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Made:
    """A family's tiny model, by transformers and as a folder."""
    root = tmp_path_factory.mktemp("vision")
    known: dict[str, tuple[Reference, Path]] = {}

    def find(family: str) -> tuple[Reference, Path]:
        if family not in known:
            folder = checkpoint(family, root, **LAYERS.get(family, FEW))
            known[family] = Reference(family, folder), folder
        return known[family]

    return find


def make_runner(folder: Path, source: Source, **given: Any) -> GpuRunner:
    """As in test_runner, with a tower beside it."""
    device = test_runner.DEVICE
    config = config_for(folder, device="cpu", block_size=16)  # that of the tower is said below
    vision = load_vision(config, resolve_model(config), torch.float32, source, device)
    assert vision is not None
    return make_gpu_runner(config, vision=vision, **given)


class Cutting(GpuDriver):
    """Cuts no picture whose tokens see one another."""

    def __init__(self, runner: GpuRunner, **options: Any) -> None:
        super().__init__(runner, **options)
        self.spans: dict[int, list[tuple[int, int]]] = {}  # of pictures, by prompts
        self.cuts = self.preempted = 0  # pictures that are cut, rows that come back
        assert runner.pictures is not None
        self.vision = runner.pictures.vision

    def asked(self, prompts: list[Prompt], wanted: int) -> list[Sequence]:
        found = [Sequence(prompt.ids, wanted) for prompt in prompts]
        for sequence, prompt in zip(found, prompts, strict=True):
            self.spans[id(sequence.prompt)] = [(start, start + length) for _, start, length, _ in prompt.pictures]
        return found

    def _leave(self, sequence: Sequence) -> None:
        self.preempted += not sequence.done
        super()._leave(sequence)

    def cut(self, sequence: Sequence, count: int) -> int:
        end = sequence.computed + count
        inside = [span for span in self.spans.get(id(sequence.prompt), []) if span[0] < end < span[1]]
        if not inside:
            return count
        self.cuts += 1
        return count if not self.vision.spec.whole_pictures else inside[0][1] - sequence.computed


class Seeing(Cutting):
    """Takes down logits of all positions, by slot."""

    def __init__(self, runner: GpuRunner, **options: Any) -> None:
        super().__init__(runner, **options)
        self.logits: dict[int, dict[int, torch.Tensor]] = {}
        self.mixed = 0  # steps of rows with pictures and others
        forward, launch, model = runner._forward, runner.launch, runner.model
        made: list[torch.Tensor] = []

        def computed(batch: Any) -> Hidden:
            hidden = forward(batch)
            made.append(model.logits(model.norm(Hidden(*(part.clone() for part in hidden)))).cpu())
            return hidden

        def started(step: Step) -> Any:
            made.clear()
            pending = launch(step)
            self._keep(runner, pending.work, made[0])
            return pending

        runner._forward, runner.launch = computed, started  # type: ignore[method-assign]

    def _keep(self, runner: GpuRunner, work: Any, logits: torch.Tensor) -> None:
        token = 0
        for row, count, first in zip(work.rows.tolist(), work.counts.tolist(), work.firsts.tolist(), strict=True):
            own = self.logits.setdefault(int(runner.slot[row]), {})
            own |= {first + at: logits[token + at] for at in range(count)}
            token += count
        sees = [bool(self.vision.encoder.source.items(int(runner.slot[row]), 1)) for row in work.rows.tolist()]
        self.mixed += any(sees) and not all(sees)


def prompts_of(reference: Reference, source: Source) -> list[Prompt]:
    """Two pictures, a text, one picture."""
    prompts = [
        reference.prompt(TEXT[:5], picture(0), TEXT[5:9], picture(1, 24, 32), TEXT[:7]),
        reference.prompt(TEXT[:15]),
        reference.prompt(picture(2, 24, 24), TEXT[:4]),
    ]
    source.add(0, prompts[0])
    source.add(2, prompts[2])
    return prompts


def run(made: Made, family: str, preempt: float = 0.0, **given: Any) -> Seeing:
    """Compared with transformers."""
    reference, folder = made(family)
    source = Source()
    prompts = prompts_of(reference, source)
    driver = Seeing(make_runner(folder, source, **given), budget=20, preempt=preempt, seed=3)
    found = driver.run(driver.asked(prompts, ANSWER))
    for slot, (prompt, tokens) in enumerate(zip(prompts, found, strict=True)):
        assert_same(reference, prompt, tokens, driver.logits[slot])
    assert driver.mixed
    return driver


def assert_same(reference: Reference, prompt: Prompt, tokens: list[int], logits: dict[int, torch.Tensor]) -> None:
    """All logits are those of the whole model, and so are the tokens."""
    wanted = reference.logits(prompt, tokens[:-1])
    assert sorted(logits) == list(range(len(wanted)))
    found = torch.stack([logits[at] for at in sorted(logits)])
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 2e-5
    assert tokens == wanted[len(prompt.ids) - 1 :].argmax(-1).tolist()


@pytest.mark.parametrize("family", [*QUICK, *slow(*(family for family in FAMILIES if family not in QUICK))])
def test_logits_are_those_of_the_whole_model_wherever_prompts_are_cut(family: str, made: Made) -> None:
    assert run(made, family).cuts


@pytest.mark.parametrize("family", ["qwen3_vl", *slow("llava", "gemma3")])
def test_a_preempted_row_is_computed_again_from_its_slot(family: str, made: Made) -> None:
    assert run(made, family, preempt=0.3).preempted


@pytest.mark.parametrize("family", slow("qwen3_vl", "llava", "gemma3"))
def test_steps_as_large_as_they_are(family: str, made: Made) -> None:
    """Without graphs, and without tokens that fill up."""
    run(made, family, graphs=False)


@pytest.mark.parametrize("family", slow("qwen2_5_vl", "llava"))
def test_a_token_has_the_same_bits_in_every_batch(family: str, made: Made) -> None:
    """By the layers that promise it, whose pictures transformers makes: so that nobody asks for it."""
    run(made, family, deterministic=True)


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


def launched(runner: GpuRunner, number: int, new: list[NewRow], rows: list[int], counts: list[int]) -> Any:
    return runner.launch(Step.make(1, number, new, rows, counts))


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
        assert len(sent) == 2 and int((pictures._places >= 0).sum()) > 0 and pictures._numbers.any()
        runner.finish(launched(runner, 2, [], [0], [1]))
        assert len(sent) == 3 and sent[-1][1] - sent[-1][0] == 3, "a row behind a picture: three numbers"
        runner.finish(launched(runner, 3, [placed(1, 1, plain, 0, [3, 4])], [1], [len(plain.ids)]))
        runner.finish(launched(runner, 4, [], [1], [1]))
    assert len(sent) == 3
    assert bool((pictures._places == -1).all()) and not pictures._numbers[len(pictures._places) :].any()


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


@pytest.mark.parametrize("family", ["qwen2_5_vl", *slow("qwen3_vl", "internvl", "smolvlm")])
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


@pytest.mark.parametrize("kind", ["qwen2_audio", *slow(*(kind for kind in KINDS if kind != "qwen2_audio"))])
def test_sounds(kind: str, tmp_path: Path) -> None:
    folder = listener(kind, tmp_path)
    theirs, source, one = Listening(kind, folder), Source(), sound(0.8, 2)
    inputs = theirs.inputs(one)
    frames = -(-len(one) // 160)
    features = inputs["input_features"]
    count = ((frames - 1) // 2 + 1 - 2) // 2 + 1 if kind == "qwen2_audio" else 25 * len(features)
    tensors = [source._tensor(name, value.numpy()) for name, value in inputs.items()]
    ids = [*TEXT[:3], *[theirs.token] * count, *TEXT[3:8]]
    source.of_slot[0] = [MediaItem(AUDIO, bytes(16), 3, count, tensors)]
    driver = Seeing(make_runner(folder, source), budget=15, seed=2)
    tokens, _ = driver.run([Sequence(ids, 2), Sequence(TEXT, 2)])
    wanted = theirs.logits(ids + tokens[:-1], inputs)
    found = torch.stack([driver.logits[0][at] for at in sorted(driver.logits[0])])
    assert float((found - wanted).abs().max() / wanted.abs().max()) < 2e-5
    assert tokens == wanted[len(ids) - 1 :].argmax(-1).tolist()


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


def test_pictures_wider_than_windows_are_for_a_cpu(made: Made, tmp_path: Path) -> None:
    folder = checkpoint("gemma3", tmp_path, **LAYERS["gemma3"], sliding_window=8)
    config = config_for(folder, device="cpu", block_size=16)
    with pytest.raises(ConfigError, match=r"fewer tokens back than the 9 of a picture.*--device cpu"):
        check_shape(config, load_model(folder).shape)
    check_shape(config, load_model(made("gemma3")[1]).shape)


def test_pictures_have_memory_of_their_own(made: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is kept, and what the tower computes in, is no KV memory; `check` counts the tower's weights, too."""
    folder = made("llava")[1]
    config = config_for(folder, device="cpu", block_size=16, max_num_seqs=4096, encoder_cache_gb=1.0)
    info = resolve_model(config)
    shape = read_architecture(read_json(folder / "config.json"))
    size = kv_block_bytes(shape, 16, torch.float32)
    room = pictures_bytes(config) + RESERVE + 1000 * size
    assert pictures_bytes(config) == 2 << 30
    monkeypatch.setattr(memory, "device_memory", lambda device: (room, room))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    config = structs.replace(config, gpu_memory_utilization=1.0)
    facts = {name: value for fact in inspection._on_gpu(config, info, shape) for name, value in fact.items()}
    tower = int(re.findall(r"of ([\d,]+)", facts["way"])[0].replace(",", ""))
    assert tower > 1000 and facts["weights_bytes"] > 4 * tower
    assert facts["blocks"] == 1000 - -(-facts["weights_bytes"] // size)
