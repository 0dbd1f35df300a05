"""A GGUF file as a server serves it: its name, its template, its answers, and a worker's death."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from safetensors.numpy import save_file

from actorserve.actors.cli import main
from tests.support.compiler import cache_with_kernels
from tests.support.models.checkpoints import CHAT_TEMPLATE, checkpoint
from tests.support.models.gguf.files import convert
from tests.support.server import Server

OPTIONS = ("--device", "cpu", "--max-num-seqs", "4", "--max-model-len", "256")


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(a file in Q8_0, a checkpoint of what it means)."""
    root = tmp_path_factory.mktemp("gguf")
    source = checkpoint("qwen3", root)
    plain = Path(shutil.copytree(source, root / "plain"))
    means = convert(source, root / "model-Q8_0.gguf", lambda name: "Q8_0")
    save_file(means, plain / "model.safetensors", metadata={"format": "pt"})
    return root / "model-Q8_0.gguf", plain


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"XDG_CACHE_HOME": str(cache_with_kernels(tmp_path_factory.mktemp("cache")))}


@pytest.fixture(scope="module")
def server(files: tuple[Path, Path], environment: dict[str, str]) -> Iterator[Server]:
    with Server(str(files[0]), "--dtype", "float32", *OPTIONS, env=environment) as server:
        yield server


def reference(folder: Path, prompt: str, count: int) -> str:
    import torch
    from transformers import AutoModelForCausalLM, PreTrainedTokenizerFast

    tokenizer = PreTrainedTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    ids = torch.tensor([tokenizer(prompt)["input_ids"]])
    made: Any = model.generate(ids, max_new_tokens=count, do_sample=False, eos_token_id=[0, 2])  # type: ignore[misc]
    return str(tokenizer.decode(made[0, ids.shape[1] :], skip_special_tokens=True))


def complete(client: Any, model: str, prompt: str) -> str:
    return str(client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0).choices[0].text)


def test_it_answers_as_transformers_does(server: Server, files: tuple[Path, Path]) -> None:
    from openai import OpenAI

    file, plain = files
    client = OpenAI(base_url=f"{server.base_url}/v1", api_key="none")
    assert [model.id for model in client.models.list().data] == [str(file)]
    asked = "The capital of Köln 🙂 is"
    wanted = reference(plain, asked, 24)
    assert complete(client, str(file), asked) == wanted
    os.kill(server.pids()["worker"], signal.SIGKILL)
    assert complete(client, str(file), asked) == wanted
    said = client.chat.completions.create(
        model=str(file), messages=[{"role": "user", "content": "Hello!"}], max_tokens=12, temperature=0
    )
    turn = "<|im_start|>user\nHello!<|im_end|>\n<|im_start|>assistant\n"
    assert "<|im_start|>{{ message.role }}" in CHAT_TEMPLATE
    assert said.choices[0].message.content == reference(plain, turn, 12)


def test_check_says_what_it_is(
    files: tuple[Path, Path],
    environment: dict[str, str],
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    command = ["check", str(files[0]), *OPTIONS]
    monkeypatch.setenv("XDG_CACHE_HOME", environment["XDG_CACHE_HOME"])
    status, told = main([*command, "--json"]), json.loads(capfd.readouterr().out)
    assert status == 0 and told["ok"], told
    assert told["model"]["architecture"] == "Qwen3ForCausalLM" and "Q8_0" in told["model"]["stored_bytes"]
    assert told["computing"]["dtype"] == "gguf and float32" and told["chat"]["templates"] == ["default"]
    assert main([*command, "--quantization", "gguf", "--dtype", "bfloat16"]) == 2
    assert "--quantization gguf: what is not quantised is float32 on a CPU, not bfloat16" in capfd.readouterr().out
