"""Models that see and pool, on a pretended GPU: vectors of prompts with pictures are a CPU's, however they are cut."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.options.config import Config, make_config
from actorserve.actors.protocol.request import EMBED, TOKEN_EMBED, Pooling, Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.eager.decoder import check_decoder, make_decoder
from actorserve.actors.worker.eager.kv import DeviceKV
from actorserve.actors.worker.gpu.memory import make_pools
from actorserve.actors.worker.memory import make_pools as make_host_pools
from actorserve.actors.worker.pooling.decoder import hidden_shape, load_hidden, open_hidden
from actorserve.actors.worker.pooling.poolers import Pooler
from actorserve.actors.worker.pooling.runner import HiddenRunner, PoolingWriter
from actorserve.actors.worker.vision.start import load_vision
from actorserve.shm.table.table import make_ref
from tests.support.gpu.pretended_device import DEVICE, PretendedDevice, on_the_host
from tests.support.models.vision.families import checkpoint
from tests.support.models.vision.reference import Prompt, Reference, Source, picture
from tests.support.selection import slow

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")

BLOCK, LENGTH, ROWS, BLOCKS = 16, 96, 3, 6
TEXT = [*range(3, 22)]
CPU = torch.device("cpu")
TWO_KINDS = {"layer_types": ["sliding_attention", "full_attention"]}


def options(folder: Path, **fields: Any) -> tuple[Config, ModelInfo]:
    given = {"device": "cpu", "runner": "pooling", "dtype": "float32", "block_size": BLOCK, "max_model_len": LENGTH}
    config = make_config({"model": str(folder), **given, **fields})
    return config, resolve_model(config)


def runner_at(at: torch.device, config: Config, info: ModelInfo, source: Source, prompts: list[Prompt]) -> Any:
    """A runner whose numbers are kept."""
    spec = info.pooling
    assert spec is not None and info.vision is not None
    model: Any
    if at == CPU:
        model, head = load_hidden(config, info, spec)
        kv: Any = make_host_pools(model.kv, ROWS * BLOCKS, BLOCK, model.dtype)
    else:
        shape = hidden_shape(config, info, spec)
        check_decoder(config, shape)
        read, head = open_hidden(config, info, spec, shape, at)
        model = make_decoder(config, info, shape, read, at)
        kv = DeviceKV(make_pools(model.model.shape, ROWS * BLOCKS, BLOCK, torch.float32, at), BLOCK, LENGTH + 1, at)
    vision = load_vision(config, info, torch.float32, source, at)
    written: dict[int, np.ndarray[Any, Any]] = {}

    def write(ref: int, rows: int, columns: int, data: bytes) -> None:
        written[ref] = np.frombuffer(data, np.float32).reshape(rows, columns)

    vectors: Any = SimpleNamespace(write=write)
    log = np.zeros((ROWS, LENGTH + 1), np.int32)
    for row, prompt in enumerate(prompts):
        log[row, : len(prompt.ids)] = prompt.ids
    writer = PoolingWriter(Pooler(spec, head, at), vectors, log)
    runner = HiddenRunner(writer, model, kv, log, BLOCK, ROWS, vision=vision)
    return SimpleNamespace(runner=runner, written=written)


def pooled(made: Any, wanted: Pooling, prompts: list[Prompt], cuts: list[dict[int, int]]) -> list[Any]:
    """What steps of these rows and counts make of each prompt."""
    blocks = np.random.default_rng(2).permutation(ROWS * BLOCKS).reshape(ROWS, BLOCKS)
    begun: set[int] = set()
    for number, cut in enumerate(cuts, 1):
        sizes = {row: len(prompts[row].ids) for row in cut if row not in begun}
        new = [
            NewRow.make(row, make_ref(1, row), size, size, 0, blocks[row].tolist(), Sampling(0, pooling=wanted))
            for row, size in sizes.items()
        ]
        begun.update(cut)
        made.runner.run(Step.make(1, number, new, [*cut], [*cut.values()]))
    return [made.written[make_ref(1, row)] for row in range(len(prompts))]


@pytest.mark.parametrize("family", ["qwen3_vl", "gemma3", *slow("llava", "qwen2_vl", "internvl")])
def test_vectors_are_a_cpus(family: str, tmp_path: Path, device: PretendedDevice) -> None:
    """Beside a text, whose first tokens are a prefix of the other's; whole, and where a picture may be cut in parts."""
    changes = {"num_hidden_layers": 2, **(TWO_KINDS if family == "gemma3" else {})}
    source = Source()
    with on_the_host(), torch.no_grad():
        folder = checkpoint(family, tmp_path, **changes)
        reference = Reference(family, folder)
        prompts = [
            reference.prompt(TEXT[:5], picture(0, 24, 24), TEXT[5:9], picture(1, 24, 32), TEXT[:7]),
            reference.prompt(TEXT[:15]),
            reference.prompt(picture(2, 24, 24), TEXT[:4]),
        ]
        for row, prompt in enumerate(prompts):
            source.add(row, prompt)
        config, info = options(folder)
        sizes = [len(prompt.ids) for prompt in prompts]
        (_, start, length, _) = prompts[0].pictures[0]
        cut = start + (length if info.vision is not None and info.vision.whole_pictures else length // 2)
        parts = [{0: cut, 1: 6}, {2: sizes[2], 0: sizes[0] - cut, 1: sizes[1] - 6}]
        whole = [dict(enumerate(sizes))]
        host = runner_at(CPU, config, info, source, prompts)
        wanted = pooled(host, Pooling(EMBED), prompts, parts), pooled(host, Pooling(TOKEN_EMBED), prompts, whole)
    there = runner_at(DEVICE, config, info, source, prompts)
    found = pooled(there, Pooling(EMBED), prompts, parts), pooled(there, Pooling(TOKEN_EMBED), prompts, whole)
    for mine, theirs in zip(found, wanted, strict=True):
        for own, their in zip(mine, theirs, strict=True):
            assert own.shape == their.shape and np.abs(own - their).max() < 1e-4
    assert there.runner.failed_rows == ()
    assert np.abs(wanted[0][0] - wanted[0][2]).max() > 0.01
