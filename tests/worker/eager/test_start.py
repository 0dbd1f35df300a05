"""Whole starts on a pretended GPU, from options to the numbers or tokens of a step."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import resolve_model
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.protocol.messages import WorkerReady
from actorserve.actors.protocol.request import EMBED, Pooling, Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.protocol.topology import System
from actorserve.actors.renderer.encoder_input import lay_out
from actorserve.actors.supervisor.shared_memory import Memory
from actorserve.actors.worker.eager import decoder, trial
from actorserve.actors.worker.eager import memory as eager_memory
from actorserve.actors.worker.encoder_decoder import load as reading_load
from actorserve.actors.worker.encoder_decoder import start as reading
from actorserve.actors.worker.encoder_decoder.model import EncoderDecoder
from actorserve.actors.worker.gpu import compilations
from actorserve.actors.worker.pooling import start as pooling
from tests.support.gpu.pretended_device import DEVICE, OnDevice, PretendedDevice, on_the_host, pretended
from tests.support.models.encoder_decoders import write_tiny
from tests.support.models.vision.families import checkpoint

from ..driver import GREEDY
from ..test_actor import Scheduler

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")

assert decoder and trial  # whose kernels are imported before they are pretended to be on a device
BLOCK, LENGTH, IDS = 16, 96, [5, 9, 31, 7, 12]
SIZES: dict[str, Any] = {"block_size": BLOCK, "max_model_len": LENGTH, "max_num_seqs": 2, "max_num_batched_tokens": 64}


@pytest.fixture
def counting(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Contexts of workers that count what is compiled from now on: here it would be other tests' kernels."""
    found: list[Any] = []
    monkeypatch.setattr(compilations, "report_late_compilations", found.append)
    return found


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch, counting: list[Any]) -> Iterator[PretendedDevice]:
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda *given: None)
    monkeypatch.setattr(eager_memory, "RESERVE", 0)
    with pretended() as found:
        yield found


def born(config: Config) -> tuple[Scheduler, Any]:
    """Who is told that the worker is ready, and the worker's context."""
    scheduler = Scheduler(Memory(System(config, resolve_model(config))))
    return scheduler, scheduler.born("worker")


def hosted(patch: pytest.MonkeyPatch, module: Any, *names: str) -> None:
    """These are done without the device, which code of transformers at load is not made for."""

    def apart(own: Callable[..., Any], *given: Any, **named: Any) -> Any:
        with on_the_host(), torch.no_grad():
            return own(*given, **named)

    for name in names:
        patch.setattr(module, name, partial(apart, getattr(module, name)))


def vector(context: Any, actor: Any, scheduler: Scheduler) -> np.ndarray:
    """That of one prompt."""
    ref = context.table.open_slot(0, b"", 1)
    context.table.write_prompt(ref, IDS, b"", 8, b"")
    new = NewRow.make(0, ref, len(IDS), len(IDS), 0, [1], Sampling(0, pooling=Pooling(EMBED)))
    actor.runner.run(Step.make(1, 1, [new], [0], [len(IDS)]))
    found = context.vectors().read(ref)
    context.flush()
    (ready,) = scheduler.receive(1)
    assert isinstance(ready, WorkerReady) and ready.num_blocks == actor.blocks and found is not None
    return np.frombuffer(found[2], np.float32)


@pytest.mark.parametrize("sees", [False, True])
def test_a_decoder_that_pools(
    checkpoints: Callable[..., Path], tmp_path: Path, device: PretendedDevice, counting: list[Any], sees: bool
) -> None:
    """The largest picture of a request is tried, too, where it sees any."""
    with on_the_host():
        layers = {"num_hidden_layers": 1}
        folder = checkpoint("llava", tmp_path, **layers) if sees else checkpoints("qwen3", **layers)
    options = {"model": str(folder), "runner": "pooling", "dtype": "float32", **SIZES}
    found = []
    for at, where in (("cpu", torch.device("cpu")), ("auto", DEVICE)):
        with on_the_host() if at == "cpu" else torch.no_grad(), torch.no_grad():
            scheduler, context = born(make_config({**options, "device": at}))
            actor = pooling.start(context, where)
            found.append(vector(context, actor, scheduler))
    assert isinstance(actor.runner.kv.pools[0].keys, OnDevice)  # type: ignore[attr-defined]
    assert counting == [context]
    assert actor.blocks == 2 * 7 and np.abs(found[1] - found[0]).max() < 1e-4
    assert (actor.vision is not None) == sees == bool(actor.vision and actor.vision.encoder.most_numbers)


@pytest.mark.parametrize("name", ["bart", "t5"])
def test_an_encoder_with_a_decoder(
    name: str, tmp_path: Path, device: PretendedDevice, monkeypatch: pytest.MonkeyPatch, counting: list[Any]
) -> None:
    with on_the_host():
        write_tiny(name, tmp_path)
    monkeypatch.setattr(reading_load, "verify_there", lambda *given: None)  # see test_encoder_decoder.py
    hosted(monkeypatch, reading_load, "try_encoder_decoder", "_read", "describe")
    found, tried = [], list[tuple[Any, ...]]()
    monkeypatch.setattr(EncoderDecoder, "try_out", lambda *given: tried.append(given[1:]))
    for at, where in (("cpu", torch.device("cpu")), ("auto", DEVICE)):
        options = {"model": str(tmp_path), "dtype": "float32", "device": at, **SIZES, "max_model_len": None}
        with on_the_host() if at == "cpu" else torch.no_grad(), torch.no_grad():
            _, context = born(make_config(options))
            actor = reading.start(context, where)
            spec = context.model.encoder
            assert spec is not None
            log = lay_out(spec, BLOCK, IDS, spec.start)
            ref = context.table.open_slot(0, b"", 1)
            context.table.write_prompt(ref, log.tokens, b"", 8, log.rendition)
            size = len(log.tokens)
            new = NewRow.make(0, ref, size, size, 0, list(range(8)), GREEDY)
            steps = [Step.make(1, 1, [new], [0], [size]), *(Step.make(1, 2 + n, [], [0], [1]) for n in range(3))]
            found.append([int(actor.runner.run(step)[0]) for step in steps])
    ((longest, sound, kv, *most),) = tried
    assert (longest, sound, len(kv.pools[0].keys)) == (spec.longest, None, 1) and counting == [context]
    assert most == [2, context.config.max_num_batched_tokens]
    assert found[0] == found[1] and actor.runner.reader.device == DEVICE  # type: ignore[attr-defined]


def test_a_machine_that_cannot_launch_kernels(
    checkpoints: Callable[..., Path], device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is said before weights are read."""

    def lacking() -> None:
        raise ConfigError("--device: kernels of a GPU cannot be launched")

    with on_the_host():
        folder = checkpoints("qwen3", num_hidden_layers=1)
    monkeypatch.setattr(compilations, "check_launcher", lacking)
    monkeypatch.setattr(pooling, "open_hidden", None)
    options = {"model": str(folder), "runner": "pooling", "dtype": "float32", "device": "auto", **SIZES}
    with pytest.raises(ConfigError, match="cannot be launched"):
        pooling.start(born(make_config(options))[1], DEVICE)


def test_no_room_at_the_start(checkpoints: Callable[..., Path], device: PretendedDevice, monkeypatch: Any) -> None:
    """For the largest step: which options need less."""

    def full(*given: Any) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    with on_the_host():
        folder = checkpoints("qwen3", num_hidden_layers=1)
    options = {"model": str(folder), "runner": "pooling", "dtype": "float32", "device": "auto", **SIZES}
    monkeypatch.setattr(eager_memory, "measure", full)
    with pytest.raises(ConfigError, match=r"^out of GPU memory at the start: CUDA .* --max-num-batched-tokens"):
        pooling.start(born(make_config(options))[1], DEVICE)
