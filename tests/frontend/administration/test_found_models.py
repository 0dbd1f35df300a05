"""What a frontend tells of models that have come since its start, whatever folders and presets do to it."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.frontend.administration import found_models
from actorserve.actors.frontend.administration.found_models import SINCE, THREAD, FoundModels
from actorserve.http.errors import ApiError


def made(preset: Path) -> FoundModels:
    served = SimpleNamespace(config=SimpleNamespace(served_names=lambda: ["old"]))
    config = SimpleNamespace(models_dir=None, models_preset=str(preset), unserved={"bad": "it is broken"})
    system = SimpleNamespace(models=[served])
    context: Any = SimpleNamespace(config=config, system=system, log=logging.getLogger("found"))
    return FoundModels(context)


@pytest.fixture
def preset(tmp_path: Path) -> Path:
    return tmp_path / "models.ini"


def looks() -> int:
    return sum(thread.name == THREAD for thread in threading.enumerate())


async def test_those_that_are_not_served_are_told(preset: Path) -> None:
    preset.write_text("".join(f"[{name}]\nmodel = /a\n" for name in ("old", "bad", "new")))
    assert await made(preset).unserved() == {"new": SINCE}


async def test_an_operators_mistake_is_logged_once_and_none_of_a_clients(
    preset: Path, caplog: pytest.LogCaptureFixture
) -> None:
    found = made(preset)
    for text, told in (("[new]\nno-such = 1\n", 1), ("[new]\nno-such = 1\n", 1), ("[new]\nmodel = /a\n", 1)):
        preset.write_text(text)
        assert await found.unserved() == ({} if "no-such" in text else {"new": SINCE})
        assert len(caplog.records) == told
    assert "[new] no-such: there is no such option" in caplog.text


async def test_a_look_that_hangs_is_one_for_all_and_ends_nobodys_wait_too_late(
    preset: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(preset)
    found = made(preset)
    monkeypatch.setattr(found_models, "LOOK_S", 0.01)
    answers = await asyncio.gather(*(found.unserved() for _ in range(3)), return_exceptions=True)
    assert all(isinstance(one, ApiError) and (one.status, one.param) == (503, "reload") for one in answers)
    assert looks() == 1
    monkeypatch.setattr(found_models, "LOOK_S", 30.0)
    waiting = asyncio.ensure_future(found.unserved())
    await asyncio.sleep(0)  # a turn of the loop, in which it joins
    await asyncio.to_thread(preset.write_text, "[new]\nmodel = /a\n")
    assert await waiting == {"new": SINCE}
