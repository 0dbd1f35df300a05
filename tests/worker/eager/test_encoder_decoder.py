"""Encoders with decoders on a pretended GPU: logits are transformers' own, and tokens those of a CPU."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import triton
from transformers import AutoConfig, AutoModelForSpeechSeq2Seq

from actorserve.actors.model.encoder_decoder.spec import EncoderSpec, SpeechSpec
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.protocol.request import Hearing, Rendition
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.renderer.encoder_input import lay_out
from actorserve.actors.worker.adapter.hooks import Unfit, register
from actorserve.actors.worker.adapter.twin import shrink
from actorserve.actors.worker.adapter.verify import randomise
from actorserve.actors.worker.eager.kv import DeviceKV
from actorserve.actors.worker.eager.trial import BLOCK, trial_kv
from actorserve.actors.worker.encoder_decoder import load
from actorserve.actors.worker.encoder_decoder.listening import Listening
from actorserve.actors.worker.encoder_decoder.model import EncoderDecoder, Way
from actorserve.actors.worker.encoder_decoder.passes import EncoderDecoderPasses
from actorserve.actors.worker.encoder_decoder.runner import EncoderDecoderRunner
from actorserve.actors.worker.encoder_decoder.verify import describe, verify, verify_there
from actorserve.actors.worker.gpu import compilations
from actorserve.actors.worker.memory import make_pools
from actorserve.actors.worker.start.shared import request_readers
from actorserve.shm.segment import Segment
from actorserve.shm.table.table import RequestTable, table_bytes
from tests.support.gpu.pretended_device import DEVICE, PretendedDevice, on_the_host
from tests.support.selection import slow

from ..driver import GREEDY
from ..encoder_decoder.test_trial import tiny

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")

SLOTS, LONGEST, POSITIONS = 2, 96, 20
SPEC = EncoderSpec(longest=32, decoder_longest=32, start=[1], filler=0)
SPEECH = SpeechSpec(languages={}, tasks={}, end=2, no_timestamps=100, mels=80, frames=2 * POSITIONS)
HEARS = msgspec.structs.replace(SPEC, longest=POSITIONS, speech=SPEECH)
READ = [list(range(5, 26)), list(range(30, 43))]


def whisper() -> Any:
    register()
    config = shrink(AutoConfig.for_model("whisper"), 128)
    config.max_source_positions = POSITIONS
    torch.manual_seed(0)
    model = AutoModelForSpeechSeq2Seq.from_config(config).float().eval()
    randomise(model)
    return model


def made(name: str) -> Any:
    return whisper() if name == "whisper" else tiny(name)


@pytest.mark.parametrize("name", ["bart", "t5", *slow("whisper", "marian", "mbart", "mt5")])
def test_logits_are_those_of_transformers(name: str, device: PretendedDevice) -> None:
    """By kernels over blocks that lie scattered, or the model's own attention over what is gathered."""
    with on_the_host(), torch.no_grad():
        model = made(name)
        read = load._reader(model.config, 128)
        verdict = verify(model, read)
    assert verdict.way is (Way.SINGLE if name.endswith("t5") else Way.FLAT) and not verdict.improved
    verify_there(model, read, verdict.way, DEVICE, trial_kv, BLOCK)


@pytest.mark.parametrize(("name", "lost"), [("bart", "attention"), *slow(("t5", "contexts"))])
def test_wrong_logits_are_seen(name: str, lost: str, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    """A position less than there are is read."""
    own = getattr(DeviceKV, lost)

    def short(kv: DeviceKV, spans: Any, *given: Any, **named: Any) -> Any:
        if lost == "attention":
            return own(kv, [span._replace(position=max(0, span.position - 1)) for span in spans], *given, **named)
        return tuple(part[:, 1:] for part in own(kv, spans, *given, **named))

    with on_the_host(), torch.no_grad():
        model = made(name)
        read = load._reader(model.config, 128)
    monkeypatch.setattr(DeviceKV, lost, short)
    with pytest.raises((Unfit, RuntimeError), match=r"off by|size of tensor|must match"):
        verify_there(model, read, Way.SINGLE if name == "t5" else Way.FLAT, DEVICE, trial_kv, BLOCK)


class Worker:
    """Two sequences in two slots, on a device or the host."""

    def __init__(self, name: str, way: Way, at: torch.device, read: Sequence[list[int]] = READ) -> None:
        self.read = read
        self.spec = HEARS if name == "whisper" else SPEC
        shape = SLOTS, LONGEST, BLOCK, 4096
        self.segment = Segment.create(table_bytes(*shape), "test")
        self.table = RequestTable.create(self.segment, 0, *shape)
        with on_the_host(), torch.no_grad():
            passes = EncoderDecoderPasses(made(name))
            kept = describe(passes, way)[0]
        pools: Any
        if at.type == "cpu":
            model = EncoderDecoder(passes, kept, way, torch.float32)
            pools = make_pools(model.kv, 16, BLOCK, model.dtype)
        else:
            passes.model.to(at)  # type: ignore[arg-type]
            model = EncoderDecoder(passes, kept, way, torch.float32)
            pools = trial_kv(model, 16)
            assert model.device == at
        self.model = model
        context: Any = SimpleNamespace(
            table=self.table,
            system=SimpleNamespace(is_reporter=lambda spec: False),
            spec=None,
            log=logging.getLogger("worker"),
        )
        parts = pools, self.table.as_numpy().tokens, BLOCK, SLOTS, *request_readers(context, model.vocab_size)
        self.runner = EncoderDecoderRunner(model, self.spec, *parts, sounds=self.sound if self.spec.speech else None)
        self.refs = [self.open(slot) for slot in range(SLOTS)]

    @staticmethod
    def sound(ref: int) -> torch.Tensor:
        with on_the_host():
            own = torch.Generator().manual_seed(ref & 1)
            return torch.randn(1, SPEECH.mels, SPEECH.frames, generator=own)

    def laid_out(self, slot: int) -> Any:
        read = [0] * POSITIONS if self.spec.speech else self.read[slot]
        return lay_out(self.spec, BLOCK, read, self.spec.start)

    def open(self, slot: int) -> int:
        ref = self.table.open_slot(slot, b"", 1)
        log = self.laid_out(slot)
        self.table.write_prompt(ref, log.tokens, b"", 8, log.rendition)
        return ref

    def run(self, steps: int) -> list[list[int]]:
        """Tokens of both: their prompts at once, then step by step."""
        drawn: list[list[int]] = []
        lengths = [len(self.laid_out(row).tokens) for row in range(SLOTS)]
        blocks = np.random.default_rng(0).permutation(16)[:12].reshape(SLOTS, 6).astype(np.int32)
        new = [NewRow.make(row, self.refs[row], size, size, 0, blocks[row], GREEDY) for row, size in enumerate(lengths)]
        for number in range(1, steps + 1):
            first = number == 1
            step = Step.make(1, number, new if first else [], [0, 1], lengths if first else [1, 1], [])
            drawn.append(list(map(int, self.runner.run(step))))
        return drawn


@pytest.mark.parametrize(("name", "alike"), [("whisper", True), ("bart", False), *slow(("bart", True), ("t5", True))])
def test_prompts_of_a_step_are_read_together(name: str, alike: bool, device: PretendedDevice) -> None:
    """Those that are equally long by one pass of the encoder, and by one of the decoder where the way is flat."""
    way = Way.SINGLE if name == "t5" else Way.FLAT
    read = [READ[0], [*range(90, 69, -1)] if alike else READ[1]]

    def drawn(at: torch.device) -> tuple[list[list[int]], list[tuple[int, ...]], list[tuple[int, ...]]]:
        worker, encoded, begun = Worker(name, way, at, read), list[tuple[int, ...]](), list[tuple[int, ...]]()
        passes, sounds = worker.model.passes, worker.runner.sounds
        if sounds is not None:
            worker.runner.sounds = lambda ref: 30 * sounds(ref)  # so loud that they are written about differently
        encode, decode = passes.encode, passes.decode

        def noted(given: torch.Tensor) -> torch.Tensor:
            encoded.append(tuple(given.shape))
            return encode(given)

        def noted_decode(ids: torch.Tensor, *given: Any) -> torch.Tensor:
            begun.append(tuple(ids.shape))
            return decode(ids, *given)

        passes.encode, passes.decode = noted, noted_decode  # type: ignore[method-assign, assignment]
        return worker.run(3), encoded, begun

    with on_the_host(), torch.no_grad():
        expected, encoded, begun = drawn(torch.device("cpu"))
    assert [shape[0] for shape in encoded] == [1, 1] and begun[:2] == [(1, 1), (1, 1)]
    found, encoded, begun = drawn(DEVICE)
    assert found == expected and found[0][0] != found[0][1]
    assert [shape[0] for shape in encoded] == ([2] if alike else [1, 1])
    assert begun[:2] == ([(1, 2), (1, 2)] if way is Way.FLAT else [(1, 1), (1, 1)])


@pytest.mark.parametrize(("name", "way"), [("bart", Way.FLAT), ("t5", Way.SINGLE), ("whisper", Way.FLAT)])
def test_tokens_are_a_cpus(name: str, way: Way, device: PretendedDevice) -> None:
    """What was read stays on the device; tokens are drawn on the host."""
    with on_the_host(), torch.no_grad():
        expected = Worker(name, way, torch.device("cpu")).run(6)
    assert Worker(name, way, DEVICE).run(6) == expected and len({token for one in expected for token in one}) > 1


@pytest.mark.parametrize(("name", "way"), [("bart", Way.FLAT), ("t5", Way.SINGLE), *slow(("whisper", Way.FLAT))])
def test_the_start_runs_what_steps_run(
    name: str, way: Way, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the model's type: as many prompts as a step has, rows that decode behind them, logits of all of these; over a
    single block."""
    worker = Worker(name, way, DEVICE)
    model, passes, seen = worker.model, worker.model.passes, list[tuple[str, tuple[int, ...]]]()

    def noted(part: str, own: Any, given: Any, *others: Any) -> Any:
        seen.append((part, tuple(given.shape)))
        return own(given, *others)

    for part in ("encode", "decode", "logits"):
        monkeypatch.setattr(passes, part, partial(noted, part, getattr(passes, part)))
    features = worker.sound(0) if worker.spec.speech else None
    begun = worker.spec.room(BLOCK) + 2
    model.try_out(worker.spec.longest, features, trial_kv(model, 1), 5, 3 * begun)
    read = (3, 80, 2 * POSITIONS) if name == "whisper" else (3, 32)
    begins, rows = ([("decode", (1, 6))], 5) if way is Way.FLAT else ([("decode", (1, 2))] * 3, 1)
    assert seen == [("encode", read), *begins, ("decode", (1, rows)), ("logits", (5, passes.width))]
    seen.clear()
    model.try_out(worker.spec.longest, features, trial_kv(model, 1), 5, begun - 1)
    assert seen[0] == ("encode", (1, *read[1:])) and seen[1] == ("decode", (1, 2))


def test_what_is_asked_of_a_sound(device: PretendedDevice) -> None:
    """When each token was said, and whether anything was: the decoder goes over the whole text once more. What two
    tokens look at is, normalised over both, 1 and -1: many paths through it would cost the same but for the last bits.
    """
    ids = [1, 9, 3, 14, 86, 13]

    def asked(at: torch.device) -> dict[str, Any]:
        worker = Worker("whisper", Way.FLAT, at)
        place = HEARS.room(BLOCK, POSITIONS)
        table: Any = SimpleNamespace(
            rendition=lambda ref: msgspec.msgpack.encode(Rendition(encoder=POSITIONS, hearing=Hearing())),
            prompt_length=lambda ref: place + 1,
            generated=lambda ref: len(ids) - 1,
            token_ids=lambda ref, start, end: ids[start - place : end - place],
        )
        return Listening(worker.model, HEARS, table, BLOCK, worker.sound).look(0, SPEECH.samples, timed=True)

    with on_the_host(), torch.no_grad():
        expected = asked(torch.device("cpu"))
    found = asked(DEVICE)
    assert found["times"] == expected["times"] and len(found["times"]) == len(ids) - 1 == 1 + len({*found["times"]})
    assert found["logprob"] == pytest.approx(expected["logprob"], abs=1e-4)
    assert found["no_speech"] == pytest.approx(expected["no_speech"], rel=1e-3)


# --- what is loaded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "stored", "wanted"),
    [
        ({}, torch.float16, torch.float16),
        ({}, torch.float32, torch.bfloat16),
        ({}, None, torch.bfloat16),
        ({"dtype": "float32"}, torch.float16, torch.float32),
    ],
)
def test_the_type(options: dict[str, str], stored: torch.dtype | None, wanted: torch.dtype) -> None:
    config, found = make_config({"model": "m", **options}), SimpleNamespace(config=SimpleNamespace(dtype=stored))
    assert load.types_of(config, None, found, DEVICE)[0] is wanted  # type: ignore[arg-type]


def test_a_small_model_is_tried_on_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """In the way that is right on the host, without what replaces parts of it there; what is compiled for it has a
    folder. Only the way whose attention is Triton's needs a compiler of C.
    """
    asked: list[tuple[Any, ...]] = []

    def there(*given: Any) -> None:
        assert Path(triton.knobs.cache.dir).is_dir()
        asked.append(given)

    def lacking() -> None:
        raise ConfigError("--device: kernels of a GPU cannot be launched")

    monkeypatch.setattr(triton.knobs.cache, "dir", "/dev/null/cache")
    monkeypatch.setattr(load, "verify", lambda twin, read: SimpleNamespace(way=twin))
    monkeypatch.setattr(load, "verify_there", there)
    read: Any = object()
    for way in Way:
        twin: Any = way
        assert load.verify_on(DEVICE, twin, read).way is way
        assert asked.pop() == (twin, read, way, DEVICE, trial_kv, BLOCK)
    monkeypatch.setattr(compilations, "check_launcher", lacking)
    single: Any = Way.SINGLE
    assert load.verify_on(DEVICE, single, read).way is Way.SINGLE
    with pytest.raises(ConfigError, match="cannot be launched"):
        load.verify_on(DEVICE, Way.FLAT, read)  # type: ignore[arg-type]


def test_heads_for_which_there_is_no_memory() -> None:
    with torch.no_grad():
        passes = EncoderDecoderPasses(made("bart"))
        kept = describe(passes, Way.FLAT)[0]
    info: Any = SimpleNamespace(architecture="BartForConditionalGeneration", folder="m")
    assert load.shape_on_gpu(info, kept, passes.model.config).layers == passes.layers
    layers = [msgspec.structs.replace(layer, key_dim=600) for layer in kept.layers if layer is not None]
    with pytest.raises(ConfigError, match="heads of 608 numbers, and on a GPU 576 are most"):
        load.shape_on_gpu(info, msgspec.structs.replace(kept, layers=tuple(layers)), passes.model.config)
