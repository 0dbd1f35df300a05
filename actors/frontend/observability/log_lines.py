"""The end of a request as a line of the log: text for people, or an object."""

from __future__ import annotations

import logging
import os
from typing import Any

from ...telemetry.log_format import LEVELS, json_line
from .finished import FinishedRequest

MS = 1e6  # ns
STDERR = 2

log = logging.getLogger("requests")


class Logger:
    """Lines of one frontend. They go past `logging`, which takes longer than everything else about a request's end."""

    def __init__(self, actor: str, as_json: bool) -> None:
        self._actor, self._as_json = actor, as_json
        self._pid = os.getpid()

    def tell(self, end: FinishedRequest) -> None:
        """One line: at info, at warning where the server failed, at debug for what generates nothing."""
        level = logging.DEBUG if not end.generates else logging.WARNING if end.status >= 500 else logging.INFO
        if not log.isEnabledFor(level):
            return
        name = logging.getLevelName(level)
        if self._as_json:
            message = f"request {end.request_id}: {end.endpoint} {end.status}"
            line = json_line(LEVELS[name], self._actor, self._pid, message, fields_of(end))
        else:
            line = f"{name} {text_of(end)}".encode(errors="replace")
        os.write(STDERR, line + b"\n")


def fields_of(end: FinishedRequest) -> dict[str, Any]:
    """What stands in an object beside the message. Times are milliseconds."""
    times, noted = end.times, end.noted
    fields: dict[str, Any] = {
        "request_id": end.request_id,
        "endpoint": end.endpoint,
        "client": end.client,
        "status": end.status,
    }
    if noted is not None:
        job = noted.job
        fields["answer_id"] = noted.answer_id
        fields["model"] = noted.model
        fields["finish_reason"] = end.finish_reason or None
        fields["prompt_tokens"] = job.prompt_tokens
        fields["cached_tokens"] = job.cached_tokens
        fields["completion_tokens"] = job.completion_tokens
        fields["preemptions"] = end.preemptions
        fields["deaths"] = end.deaths
        for name, start, stop in times.stages():
            fields[f"{name}_ms"] = (stop - start) // 1000 / 1000
        if times.first_token:
            fields["first_token_ms"] = times.to_first_token // 1000 / 1000
    fields["total_ms"] = (times.ended - times.began) // 1000 / 1000
    if end.replayed:
        fields["replayed"] = True
    if end.error:
        fields["error"] = end.error
    return fields


def text_of(end: FinishedRequest) -> str:
    """The same in a form that people read."""
    times = end.times
    parts = [f"request {end.request_id}: {end.client} {end.endpoint} {end.status}"]
    if end.error:
        parts[0] += f" ({end.error})"
    if end.noted is not None:
        job = end.noted.job
        reason = f"{end.finish_reason}, " if end.finish_reason else ""
        cached = f", {job.cached_tokens} cached" if job.cached_tokens else ""
        parts.append(f"{reason}{job.prompt_tokens} + {job.completion_tokens} tokens{cached}")
    stages = [f"{name} {(stop - start) / MS:.1f}" for name, start, stop in times.stages()]
    if times.first_token:
        stages.insert(-1, f"first token {times.to_first_token / MS:.1f}")
    stages.append(f"total {(times.ended - times.began) / MS:.1f} ms")
    parts.append(", ".join(stages))
    held = [f"{end.preemptions} × preempted"] if end.preemptions else []
    held += [f"survived {end.deaths} death{'s' if end.deaths > 1 else ''}"] if end.deaths else []
    held += ["a repetition"] if end.replayed else []
    return "; ".join(parts + held)
