"""Parts of tools/gpu_check by themselves, without a GPU: what they find where something fails, or is cut."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer

from tests.support.warm import run_program

ROOT = Path(__file__).resolve().parents[2]


class Part:
    """Runs programs that import a part, each in a process of its own."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "part.py"

    def run(self, program: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        self._file.write_text(f"import sys\nsys.path[0] = {str(ROOT)!r}\n{program}")
        return run_program(self._file, *arguments)

    def said_by(self, program: str) -> list[dict[str, Any]]:
        """Its findings."""
        done = self.run(program)
        assert done.returncode == 0, done.stderr
        return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def part(tmp_path_factory: pytest.TempPathFactory) -> Part:
    return Part(tmp_path_factory.mktemp("part"))


def test_of_ways_to_launch_only_the_one_that_is_taken_is_wrong_when_it_fails(part: Part) -> None:
    program = (
        "from tools.gpu import ceilings\n"
        "def fails():\n    raise ValueError('too much shared memory')\n"
        "assert list(ceilings.compared('all', {'as it is': [fails], 'wide': [fails], 'narrow': [int]})) == ['narrow']"
    )
    assert [(one["what"][:13], one["ok"]) for one in part.said_by(program)] == [
        ("all, as it is", False),
        ("all, wide: Va", None),
    ]


def test_runners_that_do_not_fit_leave_kernels_of_others_to_be_looked_at(part: Part) -> None:
    program = (
        "from tools.gpu import report, steps\n"
        "def make(name, *sizes, fused=False):\n"
        "    if not fused:\n        raise steps.torch.OutOfMemoryError('no room')\n"
        "    return name\n"
        "steps.Bench = make\n"
        "for kind in ('usual', 'fused'):\n"
        "    steps.looks[kind].append(lambda bench, kind=kind: report.say(f'{bench}, {kind}', 1))\n"
        "steps.kernels('tiny', steps.PLANS['tiny'], {})"
    )
    assert [(one["what"], one["ok"]) for one in part.said_by(program)] == [
        ("tiny, usual: kernels", False),
        ("tiny, fused", None),
    ]


def test_graphs_that_cannot_be_had_leave_the_rest_to_be_timed(part: Part) -> None:
    program = (
        "from tools.gpu import shapes\n"
        "shapes.torch.cuda.is_available = lambda: True\n"
        "class Runner:\n    def capture(self):\n        raise RuntimeError('an operation that is not permitted')\n"
        "shapes.capture_graphs(Runner(), 'a runner')"
    )
    (finding,) = part.said_by(program)
    assert finding["ok"] is False and "not permitted" in finding["value"]


def test_products_that_a_cpu_has_not_are_not_wrong(part: Part) -> None:
    """torch before 2.13 has none of e4m3 with a scale for each row there, and has them on a GPU."""
    program = (
        "from tools.gpu import products\nproducts.are_there = lambda: False\nproducts.scaled_products('Qwen3-0.6B')"
    )
    (finding,) = part.said_by(program)
    assert finding["ok"] is None and "not run" in finding["value"]


@pytest.mark.parametrize("starts", [True, False])
def test_a_server_that_does_not_start_is_measured_without_graphs(part: Part, starts: bool) -> None:
    program = (
        "import contextlib\n"
        "from types import SimpleNamespace\n"
        "from tools.gpu import serving\n"
        "def wait(options):\n"
        f"    assert {starts} or serving.EAGER in options, 'no graphs'\n"
        "@contextlib.contextmanager\n"
        "def started(folder, *more):\n"
        "    yield SimpleNamespace(wait_ready=lambda timeout: wait(more), lines=[], output='', base_url='')\n"
        "serving.started = started\n"
        "serving.bursts = serving.steady = serving.death = lambda server, name: serving.say(name, 1)\n"
        "serving.beside_grammar = serving.compiled_late = serving.death\n"
        "for name in ('bursts', 'steady', 'beside_grammar', 'compiled_late'):\n"
        "    getattr(serving, name).__name__ = name\n"
        "serving.serve(None)"
    )
    findings = part.said_by(program)
    labels = {one["what"] for one in findings if one["value"] == 1}
    assert labels == {"Qwen3-0.6B" if starts else "Qwen3-0.6B, --enforce-eager"}
    assert [one["ok"] for one in findings if "from start to end" in one["what"]] == ([] if starts else [False])


def test_a_cpu_is_not_measured_in_a_gpus_place(part: Part) -> None:
    program = (
        "from tools.gpu import serving\n"
        "serving.Server = lambda *given, **named: serving.say(' '.join(given), 1)\n"
        "serving.started('a folder')"
    )
    (finding,) = part.said_by(program)
    assert "--device cuda" in finding["what"]


def test_a_server_that_is_cut_has_said_why(part: Part) -> None:
    """What it said is in the log, whatever its part was waiting for."""
    program = (
        "import contextlib, os, signal, threading\n"
        "from types import SimpleNamespace\n"
        "from tools.gpu import serving\n"
        "def wait(timeout):\n"
        "    os.kill(os.getpid(), signal.SIGTERM)\n"
        "    threading.Event().wait()\n"
        "started = SimpleNamespace(wait_ready=wait, output='it compiles still')\n"
        "serving.started = lambda *given: contextlib.nullcontext(started)\n"
        "serving.serve(None)"
    )
    done = part.run(program)
    assert done.returncode == 1 and done.stderr.endswith("it compiles still\n") and not done.stdout


def test_a_part_of_what_is_timed_is_compiled_by_each_process(tmp_path: Path) -> None:
    """And nothing of it is left."""
    program = (
        "from tools.gpu import ceilings, report\n"
        "done = []\n"
        "took = [ceilings.seconds_each([lambda number=number: done.append(number)]) for number in range(5)]\n"
        "report.say('a finding', 1)\n"
        "print(done, took[0])"
    )
    environment = dict(os.environ) | {"GPU_CHECK_COMPILED": "1/2", "PYTHONPATH": str(ROOT)}
    environment["TMPDIR"] = str(tmp_path)
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout == "[1, 3] 1.0\n", done.stderr
    assert not list(tmp_path.iterdir())


def test_kernels_are_looked_at_behind_all_that_is_timed(part: Part) -> None:
    """A profiler leaves launches slower; and one that fails leaves the others."""
    program = (
        "from tools.gpu import steps\n"
        "steps.Bench = lambda name, *sizes, **kind: (name, kind)\n"
        "def fails(bench):\n    raise RuntimeError('no counters')\n"
        "seen = []\n"
        "steps.looks['fused'] += [fails, seen.append]\n"
        "steps.ORDER = [lambda name, plan, limits: seen.append('timed'), *steps.ORDER[-1:]]\n"
        "steps.ceilings.known = dict\n"
        "steps.main('tiny')\n"
        "assert seen == ['timed', ('tiny', {'fused': True})], seen"
    )
    (finding,) = part.said_by(program)
    assert finding["what"] == "tiny, fused: kernels" and "no counters" in finding["value"]


def test_what_is_compiled_ahead_gives_way_to_the_part_that_runs(part: Part) -> None:
    program = (
        "from tools.gpu import warm\n"
        "said = f'import os; assert os.nice(0) >= {warm.NICE}'\n"
        "warm.jobs = lambda: [(['timeit', '-n1', '-r1', said], {})]\n"
        "assert warm.main() == 0"
    )
    assert part.run(program).returncode == 0


def test_each_token_of_a_shape_has_a_text(part: Part, tmp_path: Path) -> None:
    """Of one without a text a stream says nothing, and what is measured of streams would be measured of none."""
    program = (
        "import sys; from pathlib import Path; from tools.gpu.shapes import SHAPES, write_folder\n"
        "write_folder('Qwen3-0.6B', Path(sys.argv[1]))\n"
        "print(SHAPES['Qwen3-0.6B']['vocab_size'], SHAPES['tiny-words']['vocab_size'])"
    )
    folder = tmp_path / "shape"
    done = part.run(program, str(folder))
    assert done.returncode == 0, done.stderr
    own, of_toy = map(int, done.stdout.split())
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    demo = Tokenizer.from_file(str(ROOT / "actors" / "model" / "demo" / "tokenizer.json")).get_vocab_size()
    assert tokenizer.get_vocab_size() == own > of_toy > demo, "a toy has such tokens, too"
    assert all(tokenizer.decode([token]).strip() for token in range(demo, own))


def test_what_decoding_should_be_launched_as_is_told_also_in_the_middle(part: Part) -> None:
    """A part that is cut says what it has found."""
    program = (
        "import os, signal\n"
        "from types import SimpleNamespace\n"
        "from tools.gpu.kernels import decode_variants as own\n"
        "queries, seen = SimpleNamespace(dtype=own.torch.bfloat16), []\n"
        "own.Case = lambda *given: SimpleNamespace(queries=queries)\n"
        "def compare(case, entry, scores):\n"
        "    seen.append(scores.add('3 stages', 0.5))\n"
        "    if len(seen) == 2:\n"
        "        os.kill(os.getpid(), signal.SIGTERM)\n"
        "own.compare = compare\n"
        "own.main()"
    )
    done = part.run(program)
    (finding,) = map(json.loads, done.stdout.splitlines())
    assert "over 2 shapes: the entry that should win is 3 stages" in finding["what"] and finding["value"] == 0.5
    assert done.returncode == 1 and done.stderr == "stopped\n"


@pytest.mark.slow  # Triton's compiler takes 20 s of CPU
def test_a_start_that_finds_no_kernels() -> None:
    """Without a GPU it is compiled for one, and loaded nowhere."""
    environment = {**os.environ, "TRITON_INTERPRET": "0", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tools.gpu.cold", "--threads", "1"]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-3000:]
    found = {(one := json.loads(line))["what"]: one["value"] for line in done.stdout.splitlines()}
    (count,) = (int(what.split()[1]) for what in found if "kernels compiled by 1 threads" in what)
    each = [value for what, value in found.items() if "of the longest" in what]
    assert len(each) <= count <= 22 and 0 < max(each) <= found["CPU time of all kernels together"]


@pytest.mark.slow  # the interpreter takes half a minute
def test_models_that_are_computed_step_by_step() -> None:
    program = "from tools.gpu.numerics.__main__ import BESIDE, check; check(BESIDE)"
    environment = {**os.environ, "GPU_CHECK_TINY": "1", "TRITON_INTERPRET": "1"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, cwd=ROOT, capture_output=True, text=True)
    found = {one["what"]: one for one in map(json.loads, done.stdout.splitlines())}
    assert done.returncode == 0 and len(found) == 5 and all(one["ok"] is not False for one in found.values()), found
    (off,) = (one["value"] for what, one in found.items() if what.startswith("a decoder that pools"))
    assert 0 < off < 1e-5


def test_a_long_row_is_timed_in_both_ways(part: Part) -> None:
    """With long rows divided, and as if there were no graphs for that; beside steps in which it is short."""
    program = (
        "from types import SimpleNamespace\n"
        "from tools.gpu.kernels import ragged as own\n"
        "uneven, seen = SimpleNamespace(sizes=[8]), []\n"
        "class Bench:\n"
        "    def __init__(self, *given, **named):\n"
        "        decoding = SimpleNamespace(sizes=[4, 8])\n"
        "        self.runner = SimpleNamespace(uneven=uneven, decoding=decoding, run=lambda step: None)\n"
        "    def place(self, rows, computed, known, first=0):\n"
        "        seen.append(known)\n"
        "        return []\n"
        "    def step(self, placed, counts):\n"
        "        assert counts == [1] * 6\n"
        "    def seconds(self, *given):\n"
        "        return 1 if seen[-1] == 100 else 3 if uneven.sizes else 9\n"
        "own.compile_kernels = own.capture_graphs = lambda *given: None\n"
        "own.Bench = Bench\n"
        "own.ragged('a model', 6, 100, 1, 1)"
    )
    costs = [finding["value"] for finding in part.said_by(program)]
    assert costs == [4e6, 1e6, 0.25], "of each of two layers, divided and not, and the share"
