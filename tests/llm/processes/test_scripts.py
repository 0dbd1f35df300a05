"""Scripts as people write them, their ends, and what they leave behind: nothing."""

from __future__ import annotations

import gc
import os
import signal
from pathlib import Path

from actorserve import LLM
from tests.llm.conftest import mapped_bytes
from tests.llm.scripts import LONG, SCRIPTED, WAIT_S, left, processes, start
from tests.support.plugins import logits_processors
from tests.support.server import left_segments, segments
from tests.support.until import until

UNGUARDED = """
from actorserve import LLM, SamplingParams
outputs = LLM(max_num_seqs=4, worker="scripted").generate(["Hello", "One"], SamplingParams(temperature=0, max_tokens=4))
print([len(output.outputs[0].token_ids) for output in outputs])
"""
INTERRUPTED = (
    LONG.format(how="threads=1")
    + """
import os, signal, threading
class Bar:  # the first prompt's end is seen, and a moment later, while it waits for others, comes the signal
    def __init__(self, **options): pass
    def set_postfix_str(self, text, refresh): pass
    def close(self): pass
    def update(self, count):
        threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()

before = llm.generate("Hello", short, use_tqdm=False)[0].outputs[0]
try:
    llm.generate(["Hello"] * 20, [short] + [long] * 19, use_tqdm=Bar)
except KeyboardInterrupt:
    print("interrupted", flush=True)
print(llm.generate("Hello", short, use_tqdm=False)[0].outputs[0] == before, flush=True)
"""
)
FORKED = (
    LONG.format(how=SCRIPTED)
    + """
import os
if os.fork() == 0:
    try:
        llm.generate("Hello")
    except RuntimeError as error:
        print(error, flush=True)
    raise SystemExit
os.wait()
print(len(llm.generate("Hello", short, use_tqdm=False)[0].outputs[0].token_ids), flush=True)
if os.fork() == 0:  # it holds copies of all descriptors
    import time
    time.sleep(60)
print("generating", flush=True)
llm.generate("Hello", long, use_tqdm=False)
"""
)


def test_a_script_needs_no_guard_and_may_come_from_standard_input(tmp_path: Path) -> None:
    before = segments()
    script = tmp_path / "script.py"
    script.write_text(UNGUARDED)
    for process in (start([str(script)], tmp_path), start(["-"], tmp_path, UNGUARDED.encode())):
        said, errors = process.communicate(timeout=WAIT_S)
        assert process.returncode == 0 and said == b"[4, 4]\n", errors.decode()
        assert b"Processed prompts: 100%" in errors
    assert left(tmp_path) == [] and not left_segments(before)


def test_a_closed_one_has_given_its_shared_memory_back() -> None:
    gc.collect()  # of those that other tests have left
    before = mapped_bytes()
    with LLM(worker="scripted", max_num_seqs=2):
        assert mapped_bytes() > before
    assert mapped_bytes() == before


def test_a_plugin_may_lie_beside_the_script(tmp_path: Path) -> None:
    """In another folder than the one that is worked in."""
    folder = tmp_path / "scripts"
    folder.mkdir()
    (folder / "beside.py").write_text(Path(logits_processors.__file__).read_text())
    script = folder / "script.py"
    script.write_text(UNGUARDED.replace('worker="scripted"', 'logits_processors=["beside:Never"]'))
    process = start([str(script)], tmp_path)
    said, errors = process.communicate(timeout=WAIT_S)
    assert process.returncode == 0 and said == b"[4, 4]\n", errors.decode()


def test_ctrl_c_ends_the_call_and_nothing_else(tmp_path: Path) -> None:
    process = start(["-c", INTERRUPTED], tmp_path)
    said, errors = process.communicate(timeout=WAIT_S)
    assert said == b"interrupted\nTrue\n", errors.decode()
    assert process.returncode == 0 and left(tmp_path) == []


def test_a_killed_caller_leaves_nothing_even_where_a_fork_lives_on(tmp_path: Path) -> None:
    before = segments()
    process = start(["-c", FORKED], tmp_path)
    assert process.stdout is not None
    assert b"a forked process cannot use its parent's" in process.stdout.readline()
    assert process.stdout.readline() == b"4\n"
    assert process.stdout.readline() == b"generating\n"
    process.kill()
    process.wait(WAIT_S)
    until(lambda: len(processes(tmp_path)) == 1)  # the fork alone lives on
    (fork,) = processes(tmp_path)
    assert not " ".join(fork.cmdline()).startswith("actorserve")
    os.kill(fork.pid, signal.SIGKILL)
    process.communicate(timeout=WAIT_S)
    assert not left_segments(before) and not processes(tmp_path)
