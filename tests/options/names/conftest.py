"""Options of a test are its own."""

from __future__ import annotations

import os

import pytest


@pytest.fixture(autouse=True)
def _nothing_from_outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("ACTORSERVE_", "LLAMA_ARG_"))]:
        monkeypatch.delenv(name)
