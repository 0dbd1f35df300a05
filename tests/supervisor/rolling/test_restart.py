"""A rolling restart for which nothing can be started."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.supervisor.processes import template_process
from actorserve.actors.supervisor.progress import OperationProgress
from actorserve.actors.supervisor.rolling.restart import Rolling


async def test_an_interpreter_that_is_missing_for_now_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """As while a virtual environment is made anew."""
    monkeypatch.setattr(template_process, "COMMAND", ("/nowhere/bin/python",))
    said = list[str]()
    supervisor: Any = SimpleNamespace(
        warm=True,
        output=SimpleNamespace(say=lambda text, level="info": said.append(text)),
        memory=SimpleNamespace(
            system=SimpleNamespace(template=SimpleNamespace(name="template"), own_templates={}), inherited=[]
        ),
        templates=[],
    )
    restart = OperationProgress(1, "renderer", 1)
    await Rolling(supervisor)._run(restart, [], {})
    assert restart.done and not supervisor.templates
    assert restart.failed.startswith("no new code can be started, and nothing is changed: [Errno 2]")
    assert "/nowhere/bin/python" in restart.failed and said[-1].endswith(restart.failed)
