"""Processes of an external launcher: each has all outputs, one has the actors, and none waits for one that is dead."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
import uuid
from pathlib import Path

import pytest

from tests.support.selection import slow

SCRIPT = textwrap.dedent(
    """
    import json, os, sys
    from actorserve import LLM, EngineDead, SamplingParams

    def main():
        rank = os.environ["RANK"]
        backend = {"distributed_executor_backend": "external_launcher"}
        with LLM(worker="scripted", data_parallel_size=2, renderers=1, **backend) as llm:
            params = SamplingParams(max_tokens=9, seed=1)
            outputs = llm.generate(["One", "Two two"], params, use_tqdm=False)
            said = [[one.prompt, one.outputs[0].text, one.outputs[0].token_ids] for one in outputs]
            try:
                llm.generate([[1, -1]], params, use_tqdm=False)
            except ValueError as error:
                said.append(str(error))
            said += [llm.is_sleeping(), llm.get_default_sampling_params().max_tokens]
            print("SAID", json.dumps(said), flush=True)
            if sys.argv[1] == "die":
                if rank == "0":
                    sys.stdin.readline()
                    os._exit(9)
                try:
                    llm.generate(["more"], params)
                except EngineDead as error:
                    print("DEAD", error, flush=True)

    if __name__ == "__main__":
        main()
    """
)


def begin(folder: Path, rank: int, run: str, how: str) -> subprocess.Popen[str]:
    script = folder / "script.py"
    script.write_text(SCRIPT)
    place = {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "LOCAL_RANK": str(rank)}
    master = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500", "TORCHELASTIC_RUN_ID": run}
    return subprocess.Popen(
        [sys.executable, str(script), how],
        env={**os.environ, **place, **master},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def line_of(process: subprocess.Popen[str], word: str) -> str:
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith(word + " "):
            return line.removeprefix(word + " ").strip()
    raise AssertionError(f"it has ended with {process.wait()} and said no {word}")


@pytest.mark.parametrize("how", ["die", *slow("end")])
def test_each_process_has_what_the_first_has(tmp_path: Path, how: str) -> None:
    """Outputs and errors; the others see the first one's death, too."""
    run = uuid.uuid4().hex
    first, second = (begin(tmp_path, rank, run, how) for rank in range(2))
    with first, second:
        said = [json.loads(line_of(process, "SAID")) for process in (first, second)]
        assert said[0] == said[1]
        (one, two), problem = said[0][:2], said[0][2]
        assert one[0] == "One" and two[0] == "Two two" and len(one[2]) == len(two[2]) == 9
        assert "prompt 0" in problem and said[0][3] is False
        if how == "die":
            assert first.stdin is not None
            first.stdin.write("\n")
            first.stdin.flush()
            assert line_of(second, "DEAD") == "the first process (RANK 0) has ended"
        assert (first.wait(), second.wait()) == (9 if how == "die" else 0, 0)
