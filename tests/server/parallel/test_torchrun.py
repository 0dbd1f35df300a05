"""Workers whose processes torchrun starts: on one machine in an LLM, on two (which here are one) as a server."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import httpx2 as httpx
import pytest

from tests.support.client import free_port

from .test_pipeline_nodes import NODE_PORTS

pytestmark = pytest.mark.slow  # each of its processes imports torch, some of them several times
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--nproc-per-node")
BACKEND = ("--distributed-executor-backend", "external_launcher")
PROMPT = "The capital of France is"
SCRIPT = f"""
import os
from actorserve import LLM, SamplingParams

def main():
    with LLM(tensor_parallel_size=2, threads=1, distributed_executor_backend="external_launcher") as llm:
        (output,) = llm.generate({PROMPT!r}, SamplingParams(max_tokens=8, temperature=0), use_tqdm=False)
        os.write(1, f"RANK {{os.environ['RANK']}} {{output.outputs[0].text}}\\n".encode())

if __name__ == "__main__":
    main()
"""


def test_each_rank_of_a_script_has_the_text_of_one_worker(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    run = (*TORCHRUN, "2", "--master-port", str(free_port(NODE_PORTS)), str(script))
    said = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    assert {f"RANK {rank}  Paris. France is" for rank in range(2)} <= {*said.splitlines()}


@contextmanager
def ended(process: subprocess.Popen[str]) -> Iterator[subprocess.Popen[str]]:
    with process:
        try:
            yield process
        finally:
            process.terminate()


def test_stages_on_two_machines_serve(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("a secret of the two machines")
    master = ("--master-addr", "127.0.0.1", "--master-port", str(free_port(NODE_PORTS)))
    launch = ("-m", "actorserve", "launch", "--port", "0", "--threads", "1", "-pp", "2", *BACKEND)
    with ExitStack() as stack:
        for node in (1, 0):
            place = ("--nnodes", "2", "--node-rank", str(node), *master)
            run = [*TORCHRUN, "1", *place, *launch, "--node-secret-file", str(secret)]
            process = subprocess.Popen(
                run, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}
            )
            stack.enter_context(ended(process))
        assert process.stdout is not None
        ready = next(line for line in process.stdout if "ready at " in line)
        url = ready.partition("ready at ")[2].split()[0]
        body = {"prompt": PROMPT, "max_tokens": 8, "temperature": 0}
        answer = httpx.post(f"{url}/v1/completions", json=body, timeout=60)
        assert answer.json()["choices"][0]["text"] == " Paris. France is"
