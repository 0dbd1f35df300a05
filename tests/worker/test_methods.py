"""What is called of a worker by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest

from actorserve.actors.protocol.topics.administration import CallArguments, CallMethod
from actorserve.actors.worker.methods import WorkerMethods

TAKES_THE_WORKER = """
class Extension:
    def __init__(self, worker):
        self._worker = worker

    def rank(self, more=0):
        return self._worker.context.spec.index + more
"""
TAKES_NOTHING = """
class Extension:
    def rank(self, more=0):
        return 3 + more
"""


@pytest.mark.parametrize("source", [TAKES_THE_WORKER, TAKES_NOTHING], ids=["the worker", "nothing"])
def test_an_extension_is_made_with_what_it_takes(source: str, tmp_path: Path) -> None:
    (tmp_path / "own.py").write_text(source)
    config = SimpleNamespace(worker_extension_cls=f"{tmp_path / 'own.py'}:Extension")
    actor: Any = SimpleNamespace(context=SimpleNamespace(config=config, spec=SimpleNamespace(index=3)), runner=None)
    arguments = msgspec.json.encode(CallArguments([], {"more": 4}))
    called = WorkerMethods(actor).call(CallMethod(1, "rank", arguments))
    assert (called.problem, called.rank, msgspec.json.decode(called.result)) == ("", 3, 7)
