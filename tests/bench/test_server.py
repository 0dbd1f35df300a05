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


@pytest.mark.parametrize("env", [None, {"HOME": "/", "VLLM_API_KEY": "theirs"}])
def test_a_server_has_no_key_of_other_servers(env: dict[str, str] | None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bench would be asked for it."""
    given: list[dict[str, str]] = []

    def popen(*_: object, env: dict[str, str], **__: object) -> NoReturn:
        given.append(env)
        raise OSError("it is not started here")

    monkeypatch.setenv("LLAMA_API_KEY", "theirs")
    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(OSError, match="not started here"), StartedServer([], 60.0, env=env):
        pass
    assert "HOME" in given[0] and not {"VLLM_API_KEY", "LLAMA_API_KEY"} & given[0].keys()


def test_an_engine_of_ray_takes_none_either(monkeypatch: pytest.MonkeyPatch) -> None:
    commands: list[list[str]] = []

    def popen(command: list[str], **_: object) -> NoReturn:
        commands.append(command)
        raise OSError("it is not started here")

    ray = SimpleNamespace(util=SimpleNamespace(get_node_ip_address=lambda: "127.0.0.1"))
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr(engine, "die_with_parent", lambda: None)
    monkeypatch.setattr(subprocess, "Popen", popen)
    with pytest.raises(OSError, match="not started here"):
        engine.Engine(["model"], "", "")
    assert commands[0][:4] == [sys.executable, "-P", "-m", "actorserve"]
