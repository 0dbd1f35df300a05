"""Decoders that pool, on a pretended GPU: a prompt's numbers are a CPU's, however it is cut, whoever is beside it."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.protocol.request import CLASSIFY, EMBED, NORMALIZE, TOKEN_EMBED, Pooling, Sampling
from actorserve.actors.protocol.step import NewRow, Step
from actorserve.actors.worker.eager import memory as eager_memory
from actorserve.actors.worker.eager.decoder import EagerDecoder, check_decoder, make_decoder
from actorserve.actors.worker.eager.kv import DeviceKV
from actorserve.actors.worker.eager.memory import give_memory
from actorserve.actors.worker.gpu.memory import make_pools
from actorserve.actors.worker.memory import make_pools as make_host_pools
from actorserve.actors.worker.pooling.decoder import hidden_shape, load_hidden, open_hidden
from actorserve.actors.worker.pooling.poolers import Pooler
from actorserve.actors.worker.pooling.runner import HiddenRunner, PoolingWriter
from actorserve.shm.table.table import make_ref
from tests.support.gpu.pretended_device import DEVICE, OnDevice, PretendedDevice, on_the_host

pytestmark = pytest.mark.skipif(torch.cuda.is_available(), reason="there is one that need not be pretended")

BLOCK, LENGTH, ROWS = 16, 96, 3
PROMPTS = [40, 17, 1]
CUTS = [([0], [16]), ([0, 1], [8, 17]), ([2, 0], [1, 16])]  # rows and counts of steps
KINDS: dict[str, dict[str, Any]] = {
    "qwen3": {"num_hidden_layers": 2},
    "gemma3": {"num_hidden_layers": 2, "layer_types": ["sliding_attention", "full_attention"], "sliding_window": 9},
}
Written = dict[int, tuple[int, int, bytes]]


def options(folder: Path, **fields: Any) -> tuple[Config, ModelInfo]:
    given = {"device": "cpu", "runner": "pooling", "dtype": "float32", "block_size": BLOCK, "max_model_len": LENGTH}
    config = make_config({"model": str(folder), **given, **fields})
    return config, resolve_model(config)


def decoder_there(config: Config, info: ModelInfo) -> tuple[EagerDecoder, Any]:
    """On the device, with its head."""
    spec = info.pooling
    assert spec is not None
    shape = hidden_shape(config, info, spec)
    check_decoder(config, shape)
    read, head = open_hidden(config, info, spec, shape, DEVICE)
    return make_decoder(config, info, shape, read, DEVICE), head


def runner_of(config: Config, info: ModelInfo, model: Any, kv: Any, head: Any, at: torch.device) -> Any:
    """A runner whose numbers are kept."""
    written: Written = {}
    vectors: Any = SimpleNamespace(write=lambda ref, rows, columns, data: written.update({ref: (rows, columns, data)}))
    log = np.zeros((ROWS, LENGTH + 1), np.int32)
    rng = np.random.default_rng(1)
    for row, size in enumerate(PROMPTS):
        log[row, :size] = rng.integers(3, 300, size)
    assert info.pooling is not None
    writer = PoolingWriter(Pooler(info.pooling, head, at), vectors, log)
    runner = HiddenRunner(writer, model, kv, log, BLOCK, ROWS)
    return SimpleNamespace(runner=runner, written=written)


def pooled(made: Any, wanted: Pooling, cuts: list[tuple[list[int], list[int]]]) -> list[np.ndarray]:
    """What steps of these rows and counts make of each prompt."""
    sampling = Sampling(0, pooling=wanted)
    blocks = np.random.default_rng(2).permutation(ROWS * 6).reshape(ROWS, 6)
    begun: set[int] = set()
    for number, (rows, counts) in enumerate(cuts, 1):
        new = [
            NewRow.make(row, make_ref(1, row), PROMPTS[row], PROMPTS[row], 0, blocks[row].tolist(), sampling)
            for row in rows
            if row not in begun
        ]
        begun.update(rows)
        made.runner.run(Step.make(1, number, new, rows, counts))
    found = (made.written[make_ref(1, row)] for row in range(ROWS))
    return [np.frombuffer(data, np.float32).reshape(rows, columns) for rows, columns, data in found]


def on_host(config: Config, info: ModelInfo) -> Any:
    assert info.pooling is not None
    model, head = load_hidden(config, info, info.pooling)
    return runner_of(config, info, model, make_host_pools(model.kv, 18, BLOCK, model.dtype), head, torch.device("cpu"))


def there(config: Config, info: ModelInfo) -> Any:
    model, head = decoder_there(config, info)
    pools = make_pools(model.model.shape, 18, BLOCK, torch.float32, DEVICE)
    kv = DeviceKV(pools, BLOCK, LENGTH + 1, DEVICE)
    return runner_of(config, info, model, kv, head, DEVICE)


@pytest.mark.parametrize("kind", KINDS)
def test_vectors_are_a_cpus(kind: str, checkpoints: Callable[..., Path], device: PretendedDevice) -> None:
    """Of the last token behind parts of a prompt, and of each token of a whole one."""
    with on_the_host():
        config, info = options(checkpoints(kind, **KINDS[kind]))
        parts = pooled(on_host(config, info), Pooling(EMBED, activation=NORMALIZE), CUTS)
        whole = pooled(on_host(config, info), Pooling(TOKEN_EMBED, whole=True), [([0, 1, 2], PROMPTS)])
    made = there(config, info)
    forward, seen = made.runner.model.forward, list[Any]()

    def noted(*given: Any) -> Any:
        seen.append(forward(*given))
        return seen[-1]

    made.runner.model.forward = noted
    for mine, theirs in zip(pooled(made, Pooling(EMBED, activation=NORMALIZE), CUTS), parts, strict=True):
        assert mine.shape == (1, info.pooling.width) and np.abs(mine - theirs).max() < 1e-5  # type: ignore[union-attr]
    assert all(isinstance(one, OnDevice) for one in seen)
    others = pooled(made, Pooling(TOKEN_EMBED, whole=True), [([0, 1, 2], PROMPTS)])
    for mine, theirs in zip(others, whole, strict=True):
        assert mine.shape == theirs.shape and np.abs(mine - theirs).max() < 1e-3


def test_a_prompt_behind_a_cached_prefix(checkpoints: Callable[..., Path], device: PretendedDevice) -> None:
    """Its first blocks were written by a row before."""
    with on_the_host():
        config, info = options(checkpoints("qwen3", **KINDS["qwen3"]))
        expected = pooled(on_host(config, info), Pooling(EMBED), [([0, 1, 2], PROMPTS)])
    made = there(config, info)
    blocks, sampling = np.arange(6).tolist(), Sampling(0, pooling=Pooling(EMBED))
    first = NewRow.make(0, make_ref(1, 0), 40, 40, 0, blocks, sampling)
    made.runner.run(Step.make(1, 1, [first], [0], [40]))
    again = NewRow.make(1, make_ref(2, 0), 40, 40, 32, [*blocks[:2], 8, 9, 10, 11], sampling)
    made.runner.run(Step.make(1, 2, [again], [1], [8]))
    for ref in (make_ref(1, 0), make_ref(2, 0)):
        found = np.frombuffer(made.written[ref][2], np.float32)
        assert np.abs(found - expected[0][0]).max() < 1e-4


def test_scores_of_labels(checkpoints: Callable[..., Path], device: PretendedDevice) -> None:
    """By rows of what makes logits, which are on the device."""
    with on_the_host():
        folder = checkpoints("qwen3", **KINDS["qwen3"])
        config, info = options(folder, pooler_config='{"returned_token_ids": [5, 9]}', convert="classify")
        assert info.pooling is not None and len(info.pooling.labels) == 2
        expected = pooled(on_host(config, info), Pooling(CLASSIFY), [([0, 1, 2], PROMPTS)])
    found = pooled(there(config, info), Pooling(CLASSIFY), [([0, 1, 2], PROMPTS)])
    for mine, theirs in zip(found, expected, strict=True):
        assert mine.shape == theirs.shape and np.abs(mine - theirs).max() < 1e-4


def test_a_step_is_started_without_a_wait(checkpoints: Callable[..., Path], device: PretendedDevice) -> None:
    with on_the_host():
        config, info = options(checkpoints("qwen3", **KINDS["qwen3"]))
    made = there(config, info)
    forward = made.runner.model.forward

    def hurried(*given: Any) -> Any:
        with device.hurrying():
            return forward(*given)

    made.runner.model.forward = hurried
    assert len(pooled(made, Pooling(EMBED), CUTS)) == ROWS


def test_what_kernels_are_given_is_aligned(checkpoints: Callable[..., Path], device: PretendedDevice) -> None:
    """They are compiled anew for addresses that are no multiples of 16, which those of a step at the start are."""
    with on_the_host():
        config, info = options(checkpoints("qwen3", num_hidden_layers=1))
    made = there(config, info)
    model, seen = made.runner.model, list[Any]()
    hidden = model._hidden

    def noted(batch: Any, pools: Any) -> Any:
        seen.append(batch.inputs)
        return hidden(batch, pools)

    model._hidden = noted
    pooled(made, Pooling(EMBED), CUTS)
    assert any(len(one.ids) % 2 for one in seen)
    for one in seen:
        for part in (one.ids, one.positions, one.slots):
            assert part.is_contiguous() and part.storage_offset() * part.element_size() % 16 == 0


def test_heads_that_kernels_cannot_take(checkpoints: Callable[..., Path]) -> None:
    config, info = options(checkpoints("qwen3", head_dim=24))
    assert info.pooling is not None
    with pytest.raises(ConfigError, match="heads of 24 numbers; on a GPU multiples of 16"):
        check_decoder(config, hidden_shape(config, info, info.pooling))


# --- memory -----------------------------------------------------------------------------------------------------------


def test_kv_memory_is_what_the_largest_step_leaves(
    checkpoints: Callable[..., Path], device: PretendedDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the part that --gpu-memory-utilization says, at least for one prompt, at most for all rows."""
    with on_the_host():
        config, info = options(checkpoints("qwen3", **KINDS["qwen3"]), gpu_memory_utilization=0.5, max_num_seqs=4)
    model, _ = decoder_there(config, info)
    layer = 2 * model.model.shape.kv_heads * BLOCK * model.model.shape.head_dim * 4
    block, total = 2 * layer, 1 << 30
    said: list[str] = []
    log = SimpleNamespace(info=lambda text, *given: said.append(text % given), warning=print)
    context: Any = SimpleNamespace(config=config, model=info, log=log, spec=SimpleNamespace(index=1, engine=0))
    context.served = SimpleNamespace(engines=range(1))
    tried: list[None] = []

    def measured(device: torch.device, step: Any) -> tuple[int, int]:
        tried.append(step())
        return total // 4, total // 4

    monkeypatch.setattr(eager_memory, "measure", measured)
    monkeypatch.setattr(eager_memory, "device_memory", lambda device: (total, total))
    monkeypatch.setattr(eager_memory, "RESERVE", 0)
    step = partial(model.try_out, 200, BLOCK)
    give = partial(give_memory, context, model.model.shape, torch.float32, DEVICE, LENGTH + 1, step)
    with pytest.raises(ConfigError, match="--gpu-memory-utilization"):
        give()
    monkeypatch.setattr(eager_memory, "measure", lambda device, step: (0, total // 4))
    found = give()
    assert len(tried) == 1 and found.blocks == 4 * 7 and found.plan.block_bytes == block
    assert all(isinstance(pool.keys, OnDevice) and len(pool.keys) == found.blocks for pool in found.kv.pools)
    assert any(line.startswith("KV memory:") for line in said)
    monkeypatch.setattr(eager_memory, "kv_kind", lambda *given: torch.float8_e4m3fn)
    with pytest.raises(ConfigError, match="--kv-cache-dtype auto: Qwen3ForCausalLM has auto on a GPU"):
        give()
