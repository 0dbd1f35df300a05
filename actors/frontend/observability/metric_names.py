"""What `/metrics` calls the numbers on the board and in a snapshot; plain gauges: telemetry/metrics.py.

vLLM's names where the thing is the same, so that dashboards which people have go on working.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from ...telemetry.gauges import SchedulerGauge as Gauge
from ...telemetry.snapshot import SLEEPING, ActorStatus

ACCEPTED_AT = {str(at): Gauge[f"ACCEPTED_AT_{at}"] for at in range(8)}  # by position in a draft
ENDS = {  # vllm:request_success_total, by finished_reason
    "stop": Gauge.ENDED_STOP,
    "length": Gauge.ENDED_LENGTH,
    "abort": Gauge.ENDED_ABORT,
    "error": Gauge.ENDED_ERROR,
}
SLEEP_STATES = ("awake", "weights_offloaded", "discard_all")  # vllm:engine_sleep_state, by the level
UNLOADED = 2  # as which one is told that wakes for a request: it has nothing of the model, and may never have had
SURVIVED = {"scheduler": Gauge.SURVIVED_SCHEDULER, "worker": Gauge.SURVIVED_WORKER}

STARTUP = "actorserve:startup_seconds", "Each phase of its latest start; the supervisor's are the whole server's"
STARTUP_TOTAL = "actorserve:startup_total_seconds", "All of these together: until it was ready, if it is"

ACTORS: tuple[tuple[Literal["gauge", "counter"], str, str, Callable[[ActorStatus], float | None]], ...] = (
    ("gauge", "actorserve:actor_up", "1 when the actor can do its part", lambda actor: actor.state == "ready"),
    (
        "gauge",
        "actorserve:actor_parked",
        "1 when it is not to do its part: its engine is one too many, or sleeps",
        lambda actor: bool(actor.parked) or actor.state == SLEEPING,
    ),
    ("counter", "actorserve:actor_restarts", "Times that it was replaced, sleeps aside", lambda actor: actor.restarts),
    (
        "gauge",
        "actorserve:actor_heartbeat_age_seconds",
        "Since its loop turned",
        lambda actor: actor.heartbeat_s,
    ),
    (
        "counter",
        "actorserve:requests_given_up",
        "Requests on which it died or hung, and which are not tried again",
        lambda actor: actor.given_up,
    ),
    (
        "counter",
        "actorserve:late_kernel_compilations",
        "GPU kernels that were compiled while requests ran, which stand still for it; it should stay 0",
        lambda actor: actor.gauges.get("late_compilations"),
    ),
    (
        "gauge",
        "actorserve:mailbox_depth",
        "Records that wait in the lanes to it, what it is handling included",
        lambda actor: actor.waiting_records,
    ),
    (
        "gauge",
        "actorserve:mailbox_oldest_message_age_seconds",
        "Age of the oldest of these; 0 if there is none",
        lambda actor: actor.oldest_s or 0.0,
    ),
    (
        "counter",
        "actorserve:mailbox_received",
        "Records that were sent to it",
        lambda actor: actor.received_records,
    ),
)
