"""--sleep-idle-seconds: with what it does not go."""

from __future__ import annotations

from typing import Any

import pytest

from actorserve.actors.options.config import ConfigError, make_config


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"steward": "127.0.0.1:8100"}, "--steward"),
        ({"nnodes": 2, "pipeline_parallel_size": 2}, "--nnodes above 1"),
        ({"prefill_engines": 1, "data_parallel_size": 2}, "--prefill-engines"),
    ],
)
def test_an_engine_that_others_wait_for_stays_awake(options: dict[str, Any], name: str) -> None:
    with pytest.raises(ConfigError, match=f"--sleep-idle-seconds: not with {name}"):
        make_config({"sleep_idle_seconds": 5, **options})
