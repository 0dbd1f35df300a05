"""The worker actor of a stage: what it tells of a step is the time in which it computed."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from ...protocol.step import Step
from ...runtime.process import Context
from ..actor import WorkerActor
from .link import StageLink

if TYPE_CHECKING:
    from ...protocol.wire import Numbers


class StageWorkerActor(WorkerActor):
    """For others it waits, too: that is theirs."""

    def __init__(self, context: Context, link: StageLink, *parts: Any) -> None:
        """`parts` as of WorkerActor, behind its context."""
        self._link = link
        super().__init__(context, *parts)

    def report_done(self, message: Step, tokens: np.ndarray, seconds: float, failed_rows: Numbers) -> None:
        super().report_done(message, tokens, max(0.0, seconds - self._link.take_waited()), failed_rows)
