"""`actorserve completion`: what is printed is tried in the shell that it is for."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from actorserve.actors.cli import COMMANDS, main
from tests.support.warm import run_command

TRIED = """
source "$1"; shift
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); COMP_LINE="$*"; COMP_POINT=${#COMP_LINE}
_shtab_actorserve
printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def script(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "bash"
    made = run_command("completion", "bash")
    assert made.returncode == 0, made.stderr
    path.write_text(made.stdout)
    return path


def completed(script: Path, *words: str) -> list[str]:
    shell = ["bash", "--norc", "-c", TRIED, "bash", str(script), "actorserve", *words]
    return subprocess.run(shell, capture_output=True, text=True, check=True).stdout.split()


def test_bash_completes_commands_and_options(script: Path) -> None:
    assert set(COMMANDS) <= set(completed(script, ""))
    assert completed(script, "run-b") == ["run-batch"]
    assert "--max-num-seqs" in completed(script, "launch", "--max-num-s")
    assert "--output-file" in completed(script, "run-batch", "--outp")


def test_the_manual_page_has_every_command(capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", "man"]) == 0
    page = capfd.readouterr().out
    assert page.startswith(".TH ACTORSERVE")
    assert all(name.replace("-", "\\-") in page for name in COMMANDS)
    assert "\\-\\-max\\-num\\-seqs" in page


def test_what_is_missing_is_told(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert main(["completion", "bash"]) == 1
    assert "pip install 'actorserve[completion]'" in capfd.readouterr().err
