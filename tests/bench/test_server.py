"""Servers that other commands start, and engines, import nothing of the folder that they are started in."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from actorserve.actors.bench.server import ServerError, StartedServer
from actorserve.actors.caretaker import engine


def test_a_server_takes_no_module_of_the_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "argparse.py").write_text("raise RuntimeError('this one is not meant')\n")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ServerError, match=r"status 2 .*\n.*no such option"), StartedServer(["--of-nobody"], 60.0):
        pass


def test_nor_does_an_engine_of_ray(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def popen(command: list[str], **_: object) -> NoReturn:
        commands.append(command)
        raise OSError("it is not started here")

    ray = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"))
    monkeypatch.setitem(sys.modules, "ray", ray)  # type: ignore[arg-type]
    monkeypatch.setattr(engine, "die_with_parent", lambda: None)
    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(OSError, match="not started here"):
        engine.Engine(["model"], "", "")
    assert commands[0][:4] == [sys.executable, "-P", "-m", "actorserve"]
