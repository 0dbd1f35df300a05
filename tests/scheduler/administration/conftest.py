"""Three models, of which one is loaded at a time."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from .three_models import Models


@pytest.fixture
def models() -> Iterator[Models]:
    made = Models()
    yield made
    made.close()


@pytest.fixture
def adapted() -> Iterator[Models]:
    made = Models(enable_lora=True)
    yield made
    made.close()
