"""What tests of adapters begin with."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.scheduler.lora.scene import Scene


@pytest.fixture
def scene() -> Iterator[Scene]:
    made = Scene()
    yield made
    made.segment.close()
