"""How a kind of model can be computed is tried once: a small model of it has the same weights at each load."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from actorserve.actors.worker.adapter.verify import verify


@pytest.fixture(scope="package", autouse=True)
def kinds_are_tried_once() -> Iterator[None]:
    """What is refused is tried each time. Tests of the trial itself call it by its own name."""
    tried: dict[tuple[type, str], Any] = {}

    def found(small: Any, improve: Any = None) -> Any:
        fields = {name: value for name, value in small.config.to_dict().items() if "name_or_path" not in name}
        key = type(small), json.dumps(fields, sort_keys=True, default=str)
        if key not in tried:
            tried[key] = verify(small, improve)
        return tried[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("actorserve.actors.worker.adapter.load.verify", found)
        yield
