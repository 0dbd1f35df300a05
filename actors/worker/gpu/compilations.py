"""Kernels that are compiled when they should not be: all there are were compiled before the worker said it is ready.

Triton compiles a kernel where it is launched with arguments of a kind that were not met before. That takes a second or
more, in which all streams stand still, so that it is counted and named here instead of being taken for a slow device.
"""

from __future__ import annotations

from typing import Any

import triton

from ...runtime.process import Context
from ...telemetry.gauges import WorkerGauge


def report_late_compilations(context: Context) -> None:
    """From now on each kernel that is compiled is counted (`actorserve:late_kernel_compilations`) and logged."""

    def compiled(*, fn: Any, repr: str, **others: Any) -> None:  # noqa: A002 (Triton's names)
        context.status.add(WorkerGauge.LATE_COMPILATIONS, 1)
        context.log.warning("kernel %s was compiled while requests ran: they stood still for it", fn.name)
        context.log.debug("compiled late: %s", repr)

    triton.knobs.runtime.jit_post_compile_hook = compiled
