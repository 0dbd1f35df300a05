"""Profiles, as a frontend begins and ends them: what of their folder is told to whoever asks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.frontend.administration.profile import Profiles
from actorserve.actors.protocol.topics.administration import Profiled
from actorserve.http.errors import ApiError


async def test_a_folder_that_is_full_is_named_and_nothing_is_left_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def ask_engines(make: Any, only: list[int]) -> list[Profiled]:
        return [Profiled(1, 5)]

    def full(place: Path, content: bytes) -> int:
        place.touch()
        raise OSError(28, "No space left on device")

    system = SimpleNamespace(actors=[], remote_engines=range(0))
    context: Any = SimpleNamespace(config=SimpleNamespace(profile_dir=str(tmp_path)), board=None, system=system)
    calls: Any = SimpleNamespace(ask_engines=ask_engines)
    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(ApiError, match=rf"{tmp_path} \(--profile-dir\): No space left") as told:
        await Profiles(context, calls).stop()
    assert told.value.status == 503 and not list(tmp_path.iterdir())
