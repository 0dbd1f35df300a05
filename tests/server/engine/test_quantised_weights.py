"""Published weights through a whole server: the tokens of transformers on the numbers that they mean."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from actorserve.actors.worker.cpu.layers import native
from tests.support.client import http_client
from tests.support.models.checkpoints import checkpoint
from tests.support.models.greedy import generate, reference
from tests.support.models.weight_formats import write
from tests.support.selection import slow
from tests.support.server import Server
from tests.worker.driver import Driver, Sequence, config_for, make_runner

PROMPTS = [np.random.default_rng(seed).integers(3, 300, 20 + 17 * seed).tolist() for seed in range(4)]
OPTIONS = ("--threads", "1", "--max-num-batched-tokens", "64", "--device", "cpu")


def answers(folder: Path, *options: str) -> list[list[int]]:
    asked = {"prompt": PROMPTS, "temperature": 0, "max_tokens": 24, "ignore_eos": True, "return_token_ids": True}
    with Server(str(folder), *OPTIONS, *options) as server, http_client(server) as client:
        answer = client.post("/v1/completions", json=asked)
        assert answer.status_code == 200, answer.text
        return [choice["token_ids"] for choice in answer.json()["choices"]]


@pytest.mark.slow
@pytest.mark.parametrize(("kind", "name"), [("llama", "awq"), ("phi3", "gptq_g_idx"), ("qwen3", "fp8")])
@pytest.mark.parametrize("workers", ["1", "2"])
def test_decoded_numbers_are_those_of_transformers(kind: str, name: str, workers: str, tmp_path: Path) -> None:
    packed, plain = write(checkpoint(kind, tmp_path / "source"), name, tmp_path)
    model = reference(plain)
    wanted = [generate(model, prompt, 24) for prompt in PROMPTS]
    assert answers(packed, "--quantization", "none", "--dtype", "float32", "-tp", workers) == wanted


@pytest.mark.parametrize("kernels", [*slow("torch"), "auto"])
def test_without_any_option_they_are_of_8_bits_or_as_they_are(kernels: str, tmp_path: Path) -> None:
    """As in process, prompt by prompt: by kernels of our own the checkpoint's 4 bits."""
    packed, _ = write(checkpoint("llama", tmp_path / "source"), "w4a16_zero_points", tmp_path)
    native.start(kernels, 1)
    try:
        runner = make_runner(config_for(packed))
    finally:
        native.stop()
    wanted = [Driver(runner, seed=seed).run([Sequence(prompt, 24)])[0] for seed, prompt in enumerate(PROMPTS)]
    assert answers(packed, "--cpu-kernels", kernels) == wanted
