"""The options that `actorserve restart` gives the new actors."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve.actors.cli import make_parser
from actorserve.actors.commands.running.restart import _options


def test_files_are_named_as_seen_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The server stands in another folder."""
    monkeypatch.chdir(tmp_path)
    for name in ("template.jinja", "own.py", "adapter"):
        Path(name).touch()
    Path("more.yaml").write_text("lora_modules: [{name: a, path: adapter}]\nprofile_dir: profiles\n")
    words = ("chat_template=template.jinja", "logits_processors=own.py:One", "worker_cls=own.py:Two", "log_level=debug")
    given = [one for word in words for one in ("--set", word)]
    assert _options(make_parser("restart").parse_args(["restart", "all", *given, "--config", "more.yaml"])) == {
        "chat_template": f"{tmp_path}/template.jinja",
        "logits_processors": [f"{tmp_path}/own.py:One"],
        "worker_cls": f"{tmp_path}/own.py:Two",
        "log_level": "debug",
        "lora_modules": [f'{{"name":"a","path":"{tmp_path}/adapter"}}'],
        "profile_dir": f"{tmp_path}/profiles",
    }
