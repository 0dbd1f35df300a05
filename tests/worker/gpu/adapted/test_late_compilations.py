"""Which kernels are compiled for a model by layers of transformers whose layers' heads differ, or that keep latents:
all of them before the worker is ready, and attention once for each kind of layer. As start/test_compilations.py, in a
process of its own."""

from __future__ import annotations

import json
import sys
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch

from actorserve.actors.options.config import make_config
from actorserve.actors.worker import logprobs
from actorserve.shm.table.logprobs import Logprobs
from tests.support.gpu.no_device import compile_nothing
from tests.support.warm import run_module

SETUP: dict[str, Any] = {"rows": 3, "length": 1030, "block_size": 16, "tokens": 41, "graphs": False}
OF_A_KIND = {"_decode": 2, "_merge": 2, "_prefill": 1, "_merge_tokens": 1, "rotary_kv_kernel": 1}  # divided or not


@pytest.mark.parametrize(("name", "kinds"), [("gemma4_text", 2), ("minicpm3", 1)])
def test_nothing_is_compiled_in_traffic(name: str, kinds: int) -> None:
    """Of Gemma 4 26B-A4B made small, over packed blocks, and of one that keeps latents, in bfloat16."""
    done = run_module("tests.worker.gpu.adapted.test_late_compilations", name, wait_s=280, TRITON_INTERPRET="0")
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, list[str]] = json.loads(done.stdout)
    assert found["beside"] == [] and found["after"] == [], "compiled while requests run"
    counts = {kernel: found["before"].count(kernel) for kernel in OF_A_KIND}
    assert all(kinds <= counts[kernel] <= kinds * each for kernel, each in OF_A_KIND.items()), counts


def make_runner(name: str = "gemma4_text") -> Any:
    """Of random weights."""
    from transformers import AutoConfig, AutoModelForCausalLM

    from actorserve.actors.worker.adapter.probe import probe
    from actorserve.actors.worker.adapter.twin import shrink
    from actorserve.actors.worker.gpu.adapted.model import AdaptedGpuModel
    from actorserve.actors.worker.gpu.adapted.trial import seen_shape
    from actorserve.actors.worker.gpu.buffers import Sizes
    from actorserve.actors.worker.gpu.graphs import capture_sizes
    from actorserve.actors.worker.gpu.memory import make_pools, plan_memory
    from actorserve.actors.worker.gpu.runner import GpuRunner

    from ...adapter.test_twin import GEMMA4_26B

    device, dtype, rows, length = torch.device("cpu"), torch.bfloat16, SETUP["rows"], SETUP["length"]
    fields = GEMMA4_26B if name == "gemma4_text" else {}
    twin = AutoModelForCausalLM.from_config(shrink(AutoConfig.for_model(name, **fields), 90)).eval()
    traits = probe(twin, 512)
    shape = seen_shape(twin, traits)
    options = {"block_size": SETUP["block_size"], "max_num_batched_tokens": SETUP["tokens"], "max_num_seqs": rows}
    plan = plan_memory(make_config(options), shape, length, dtype)
    model = AdaptedGpuModel(twin.to(dtype).requires_grad_(False), traits, shape, dtype, device)
    given = Sizes(rows, SETUP["tokens"], length, SETUP["block_size"])
    if fields:
        assert plan.windows is not None and plan.windows.packing is not None
        model.table_of = plan.windows.table_of(shape.kv)
        given = given._replace(tables=len(plan.windows.tables), window=plan.windows.window)
    told = Logprobs(Logprobs.create(rows, length), rows, length)
    log = np.zeros((rows, length), np.int32)
    runner = GpuRunner(model, log, given, capture_sizes([], rows), logprobs=told)
    blocks = rows * plan.sequence_blocks
    runner.pools = make_pools(shape, blocks, SETUP["block_size"], dtype, device, plan.windows)
    return runner


def main() -> None:
    from ..start.test_compilations import counted_by

    torch.set_num_threads(1)
    names = compile_nothing()
    logprobs.LOG_SUMS["cpu"] = logprobs.LOG_SUMS["cuda"]
    print(json.dumps(counted_by(names, partial(make_runner, sys.argv[1]), SETUP)[0]))


if __name__ == "__main__":
    main()
