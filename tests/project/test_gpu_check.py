"""tools/gpu_check: its table, what it does about parts that fail or take too long, and all of it on toys."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import runpy
import subprocess
import sys
import zipfile
from importlib import metadata
from pathlib import Path
from typing import Any

import psutil
import pytest

from tools.gpu import requirements

ROOT = Path(__file__).resolve().parents[2]
CHECK = ROOT / "tools" / "gpu_check"


@pytest.fixture(scope="module")
def check() -> dict[str, Any]:
    found = runpy.run_path(str(CHECK))
    found["run"].__globals__["LEAST_S"] = 0.1
    return found


@pytest.fixture
def asked(check: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """The same where nobody imports all that parts need, to say what is missing: 3 CPU s each time."""
    names = check["check"].__globals__
    monkeypatch.setitem(names, "lacking", lambda environment: [f"{len(environment)} names are set"])
    return check


def options(**given: Any) -> Any:
    return argparse.Namespace(**{"out": None, "tiny": True, **given})


def test_a_part_that_is_well(check: dict[str, Any]) -> None:
    finding = '{"what": "a", "value": 2.5, "unit": "ms", "goal": "at most 3", "ok": true}'
    lines, well = check["run"]("steps", ["-c", f"print('no finding'); print('{finding}')"], 60, dict(os.environ))
    assert well and "| a | 2.5 | ms | at most 3 | yes |" in lines


@pytest.mark.parametrize(
    ("program", "limit", "said"),
    [
        ('print(\'{"what": "a", "value": 4, "unit": "ms", "goal": "at most 3", "ok": false}\')', 60, "**no**"),
        ("raise SystemExit('it broke')", 60, "it broke"),
        ("import threading; threading.Event().wait()", 0.5, "ended with cut after 0 s"),
        ("", 0.1, "no time was left"),
    ],
)
def test_a_part_that_is_not(check: dict[str, Any], program: str, limit: float, said: str) -> None:
    lines, well = check["run"]("steps", ["-c", program], limit, dict(os.environ))
    assert not well and said in "\n".join(lines)


def test_what_asks_for_all_that_is_missing_may_hang(check: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As an import of a broken library does: it is said, and the parts have their turns."""
    names = check["lacking"].__globals__
    monkeypatch.setitem(names, "LACKING_S", 0.5)
    monkeypatch.setitem(names, "ended", lambda command, *given: check["ended"](["sleep", "60"], *given))
    assert check["lacking"](dict(os.environ))[2] == "- cut after 0 s: "


def test_a_part_that_does_not_even_die_is_left_behind(check: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that hangs in a driver: here nobody is killed, and the next part has its turn."""
    names, killed = check["run"].__globals__, []
    monkeypatch.setitem(names, "END_S", 0.1)
    with monkeypatch.context() as patch:
        patch.setattr(names["os"], "killpg", lambda *given: killed.append(given))
        lines, well = check["run"]("steps", ["-c", "import threading; threading.Event().wait()"], 0.5, dict(os.environ))
    (pid, _), (_, last) = killed
    os.kill(pid, last)
    assert os.waitpid(pid, 0)[0] == pid and not well and any("cut after" in line for line in lines)


def test_where_there_is_no_git_and_no_gpu(check: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    assert check["head"]()[0].endswith("no GPU, commit unknown")


def test_float32_is_compared_with_float32(
    check: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "1")  # as in images of CUDA
    environment = check["prepare"](options(wheels=None), tmp_path)
    program = "import torch; assert torch.get_float32_matmul_precision() == 'highest'"
    subprocess.run([sys.executable, "-c", program], env=environment, check=True)


def test_what_decides_comes_first_and_all_of_it_has_time(check: dict[str, Any]) -> None:
    names = [name for name, _, _ in check["PARTS"]]
    assert names.index("the server beside transformers") < names.index("kernels' times") < len(names) - 1
    before_tests = sum(limit for name, _, limit in check["PARTS"] if "tests" not in name)
    assert before_tests <= 1.3 * check["WHOLE_S"], "limits are for parts that go wrong; what they take is less"


def test_a_part_that_is_cut_leaves_no_process(check: dict[str, Any], tmp_path: Path) -> None:
    """A server that a part had started would have the device's memory."""
    note = tmp_path / "pid"
    program = (
        "import subprocess, sys, threading\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import signal, threading; signal.signal(15, signal.SIG_IGN); "
        "threading.Event().wait()'])\n"
        f"open({str(note)!r}, 'w').write(str(child.pid))\n"
        "threading.Event().wait()"
    )
    lines, well = check["run"]("steps", ["-c", program], 4.0, dict(os.environ))
    assert not well and any("cut after" in line for line in lines)
    with contextlib.suppress(psutil.NoSuchProcess):
        psutil.Process(int(note.read_text())).wait(20)
    assert not psutil.pid_exists(int(note.read_text()))


def test_the_table_is_told_part_by_part(
    asked: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What was found is there when the next part begins, whatever becomes of that; what is no finding is none."""
    file = tmp_path / "new" / "table.md"
    finding = '{"what": "a", "value": 1, "unit": "", "goal": "", "ok": null}'
    noise = """print('{"what": "half'); print("{'of': 'a library'}"); sys.stdout.buffer.write(bytes([255, 10]))"""
    second = f"import sys; print(open({str(file)!r}).read(), file=sys.stderr); {noise}; sys.exit(1)"
    parts = [
        ("first", ["-c", f"print({finding!r})"], 60.0),
        ("second", ["-c", second], 60.0),
        ("third", ["-c", f"print({finding!r})"], 60.0),
    ]
    assert asked["check"](parts, options(out=file), dict(os.environ)) == 1
    told = capsys.readouterr().out
    assert told.strip() == file.read_text().strip() and told.count("| a | 1 |") == 3, "twice itself, and once read"
    assert f"{len(os.environ)} names are set" in told, "what is lacking stands before the parts"
    assert [line for line in told.splitlines() if line.startswith("- ")][1].endswith("ended with 1; 0 rows say no")


def test_a_check_that_is_stopped_ends_its_part(tmp_path: Path) -> None:
    """As by a limit on all of it: whoever is next finds the device free, and what the part has said in the log, also
    when it was told to end."""
    pipe, out = tmp_path / "pipe", tmp_path / "table.md"
    os.mkfifo(pipe)
    part = (
        "import os, signal, sys, threading; signal.signal(signal.SIGTERM, lambda *_: sys.exit('and why')); "
        f"print('half'); open({str(pipe)!r}, 'w').write(str(os.getpid())); "
    )
    program = (
        f"import runpy, sys\nfound = runpy.run_path({str(CHECK)!r})\n"
        f"parts = [('steps', ['-c', {part + 'threading.Event().wait()'!r}], 60.0)]\n"
        "found['main'].__globals__.update(PARTS=parts, lacking=lambda environment: [])\n"
        f"sys.argv = ['gpu_check', '--out', {str(out)!r}]\nfound['main']()"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as done:
        pid = int(pipe.read_text())
        done.terminate()
        assert done.communicate(timeout=60)[1].endswith(b"stopped\n")
    log = out.with_suffix(".log").read_text()
    assert not psutil.pid_exists(pid) and "half" in log and "and why" in log


def test_all_that_parts_say_is_in_a_log(asked: dict[str, Any], tmp_path: Path) -> None:
    """Of a part that is well, too, and of no earlier check."""
    file, long = tmp_path / "table.md", "print('\\n'.join(f'line {number}' for number in range(100)))"
    (tmp_path / "table.log").write_text("of another day")
    parts = [("first", ["-c", long], 60.0), ("second", ["-c", f"{long}; raise SystemExit('it broke')"], 60.0)]
    assert asked["check"](parts, options(out=file), dict(os.environ)) == 1
    log = (tmp_path / "table.log").read_text()
    assert log.count("line 0\n") == log.count("line 99\n") == 2 and "it broke" in log and "another day" not in log
    assert "line 0\n" not in file.read_text()


def test_the_summary_has_what_is_wrong_as_far_as_there_is_room(check: dict[str, Any]) -> None:
    row = {"value": 1, "unit": "", "goal": "no error"}
    bad = [check["row"]({**row, "what": f"row {number} {'x' * 300}", "ok": False}) for number in range(100)]
    good = check["row"]({**row, "what": "well", "ok": True})
    bad[0] = check["row"]({**row, "what": "row 0", "ok": False})
    lines = check["summary"](
        [("first", [good, "", "3 s, ended with 0.", ""]), ("second", [*bad, "4 s, ended with 1."])]
    )
    text = "\n".join(lines)
    assert lines[2:4] == ["- first: 3 s, ended with 0; 0 rows say no", "- second: 4 s, ended with 1; 100 rows say no"]
    assert len(text) <= 10_000 and bad[0] in lines and "well" not in text
    told = sum(line.startswith("| row ") for line in lines)
    assert 40 < told < 100 and f"{100 - told} more rows say no" in lines


def test_kernels_are_compiled_beside_what_times_nothing(
    asked: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part of another name has nobody beside it; what is not done with that part is ended."""
    names, pipe, told = asked["run"].__globals__, tmp_path / "pipe", tmp_path / "told"
    with monkeypatch.context() as patch:
        patch.setitem(names, "compiling", pytest.fail)
        assert asked["check"]([("steps", ["-c", "pass"], 60.0)], options(tiny=False), dict(os.environ)) == 0
    os.mkfifo(pipe)
    compiling = f"import os, threading; open({str(pipe)!r}, 'w').write(str(os.getpid())); threading.Event().wait()"
    monkeypatch.setitem(names, "COMPILING", ["-c", compiling])
    part = f"open({str(told)!r}, 'w').write(open({str(pipe)!r}).read())"
    assert asked["check"]([(names["BESIDE"], ["-c", part], 60.0)], options(tiny=False), dict(os.environ)) == 0
    assert not psutil.pid_exists(int(told.read_text()))
    assert names["BESIDE"] in [name for name, _, _ in asked["PARTS"]]


def test_tests_that_fail_are_told_at_once_and_take_no_others_along(check: dict[str, Any], tmp_path: Path) -> None:
    """A part that is cut has no summary; and whose device has given up would fail all that comes behind."""
    (tmp_path / "test_some.py").write_text(
        "import os, signal\n"
        "broken = []\n"
        "def test_a():\n    pass\n"
        "def test_b():\n    broken.append(1)\n    raise RuntimeError('CUDA error: an illegal memory access')\n"
        "def test_c():\n    assert not broken\n"
        "def test_d():\n    assert 1 == 2, 'another'\n"
        "def test_e():\n    os.kill(os.getppid(), signal.SIGKILL)\n"
    )
    (tmp_path / "test_other.py").write_text("import no_such_module\n")
    plugin = tmp_path / "site" / "somebodys-1.dist-info"  # of others: what it imports may be too early, or not work
    plugin.mkdir(parents=True)
    (plugin / "METADATA").write_text("Metadata-Version: 2.1\nName: somebodys\nVersion: 1\n")
    (plugin / "entry_points.txt").write_text("[pytest11]\nsomebodys = no_such_plugin\n")
    command = ["-m", "pytest", *check["TOLD"], "-n", "1", "-c", os.devnull, "--rootdir", str(tmp_path), str(tmp_path)]
    environment = check["prepare"](options(wheels=None), tmp_path / "parts")
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path / "site")
    lines, well = check["run"]("tests", command, 240, environment)
    told = [line for line in lines if line.startswith("| FAILED")]
    assert not well and any("ended with -9" in line for line in lines)
    for name, words in (("other.py", "no_such_module"), ("b", "illegal memory access"), ("d", "another")):
        assert any(f"test_{name}: " in line and words in line for line in told), told
    assert not any("test_c" in line for line in told)


def test_what_is_missing_or_older_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """By what setup.cfg requires; builds of NVIDIA's are before their release, and have names of their own."""
    there = {one.name: "99" for one in requirements.required()}
    there |= {"transformers": "5.17.0", "torch": "2.12.0a0+nv25.10", "triton": "3.5.1"}
    del there["msgspec"]

    def version(name: str) -> str:
        if name not in there:
            raise metadata.PackageNotFoundError(name)
        return there[name]

    monkeypatch.setattr(metadata, "version", version)
    wanted = [one for one in requirements.required() if one.name in ("transformers", "torch", "triton", "msgspec")]
    assert [one.name for one in wanted] == ["msgspec", "torch", "transformers", "triton"]
    assert {"hypothesis", "pytest-timeout", "peft"} <= there.keys(), "without which pytest ends, or a file of tests"
    said = [*requirements.unmet(wanted)]
    assert [line.split(" ", 1)[1] for line in said] == [
        "is missing",
        "is wanted, and 5.17.0 is there",
        "is wanted, and 3.5.1 is there",
    ]
    assert said[0].startswith("msgspec>=") and said[1].startswith("transformers")


def test_what_cannot_be_imported_is_said() -> None:
    said = [*requirements.not_imported(("no_such_module", "json", "tests.support.server"))]
    assert said == [
        "no_such_module cannot be imported: ModuleNotFoundError: No module named 'no_such_module'",
        f"json is that of {json.__file__}",
    ]


def test_packages_of_the_same_names_are_not_taken(check: dict[str, Any], tmp_path: Path) -> None:
    """Somebody else's `tests` among what is installed: nothing is missing, and pytest finds those of this checkout."""
    (tmp_path / "site" / "tests" / "support").mkdir(parents=True)
    for folder in ("tests", "tests/support"):
        (tmp_path / "site" / folder / "__init__.py").touch()
    environment = check["prepare"](options(wheels=None), tmp_path / "parts")
    environment["PYTHONPATH"] += os.pathsep + str(tmp_path / "site")
    assert check["lacking"](environment) == []
    command = [sys.executable, "-m", "pytest", *check["TOLD"], "--collect-only", "tests/project/test_layers.py"]
    done = subprocess.run(command, env=environment, cwd=CHECK.parent.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout


def test_wheels_are_on_the_path(check: dict[str, Any], tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "some-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("some_package/__init__.py", "NUMBER = 7")
    environment = check["prepare"](options(wheels=tmp_path), tmp_path)
    program = "import some_package; print(some_package.NUMBER)"
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "7", done.stderr


def test_what_fails_within_a_part_is_a_finding(check: dict[str, Any]) -> None:
    program = (
        "from tools.gpu.report import say, surviving\n"
        "with surviving('one'):\n    raise RuntimeError('it broke')\n"
        "say('another', 1)"
    )
    lines, well = check["run"]("steps", ["-c", program], 60, dict(os.environ))
    text = "\n".join(lines)
    assert not well and "| one | RuntimeError: it broke |" in text and "| another | 1.0 |" in text
    assert "Traceback" in text, "what was said of it is in the table, too"


def test_the_list_of_parts() -> None:
    done = subprocess.run([sys.executable, CHECK, "--list", "--only", "kernels"], capture_output=True, text=True)
    assert done.returncode == 0 and "kernels' times" in done.stdout and "the server" not in done.stdout


@pytest.mark.slow  # the interpreter takes minutes for the steps of a toy
def test_all_of_it_on_toys(check: dict[str, Any], tmp_path: Path) -> None:
    out = tmp_path / "table.md"
    subprocess.run([sys.executable, CHECK, "--tiny", "--out", out], check=True, capture_output=True, timeout=2400)
    table = out.read_text()
    assert table.count("ended with 0.") == len(check["TINY_PARTS"]) and "**no**" not in table
    assert len(re.findall(r"^\| .* \|$", table, re.MULTILINE)) > 60
