"""KV tiers of a model in stages: a block has the parts of all, and is found by servers with as many."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from tests.server.engine.test_kv_tiers import ask_all, fill, launch
from tests.support.client import http_client


@pytest.mark.slow
@pytest.mark.parametrize("stages", [("-pp", "2"), ("-pp", "3"), ("-pp", "2", "-tp", "2")])
def test_blocks_of_stages_outlive_the_server(stages: tuple[str, ...], tmp_path: Path) -> None:
    """Whose own blocks are others than one worker's. Texts stay what they are, also behind the death of a stage."""
    wanted = fill(tmp_path, *stages)
    with launch(tmp_path, *stages, "--max-restarts", "100") as server, http_client(server) as client:
        texts, share = ask_all(client)
        assert texts == wanted and share >= 0.95
        victim = next(name for name in server.pids() if name.startswith("worker-pp1"))
        os.kill(server.pids()[victim], signal.SIGKILL)
        server.wait_for(rf"{victim} is up")
        assert ask_all(client)[0] == wanted
    with launch(tmp_path) as server, http_client(server) as client:
        texts, share = ask_all(client)
        assert not share and (texts == wanted or "-tp" in stages)  # sums of a group's members have other bits
