"""A rolling restart for which nothing can be started, or of which there is nothing."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.supervisor.control.socket import CommandRefused
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


def test_only_kinds_that_are_there_are_named() -> None:
    specs = [SimpleNamespace(name=f"{kind}-0", kind=kind, engine=0, model=0) for kind in ("renderer", "worker")]
    children = [SimpleNamespace(name=spec.name, spec=spec) for spec in specs]
    supervisor: Any = SimpleNamespace(refuse_if_busy=lambda: None, children=children)
    with pytest.raises(CommandRefused) as caught:
        Rolling(supervisor).begin("porter", {})
    assert str(caught.value) == "there is no actor 'porter'; there are worker, renderer, renderer-0, worker-0, all"
