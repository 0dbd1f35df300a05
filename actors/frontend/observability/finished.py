"""A request at its end: what became of it, and when what happened to it."""

from __future__ import annotations

from dataclasses import dataclass

from actorserve.http.generation.times import JobTimes
from actorserve.http.middleware.context import RequestContext
from actorserve.http.routes import GENERATING


@dataclass(slots=True, kw_only=True)
class Times(JobTimes):
    """Those of its job, and of the request: when its head was read, and when all was out."""

    began: int
    ended: int

    def stages(self) -> list[tuple[str, int, int]]:
        """(name, start, end) of each stage that was begun and ended; of one that repeats an earlier request, what of
        them came behind its own beginning."""
        points = (
            ("queued", self.arrival, self.render_begun),
            ("rendered", self.render_begun, self.rendered),
            ("waiting", self.rendered, self.scheduled),
            ("prefill", self.scheduled, self.first_token),
            ("decode", self.first_token, self.last_token),
        )
        own = ((name, max(start, self.began), stop) for name, start, stop in points if start)
        return [(name, start, stop) for name, start, stop in own if stop >= start]

    @property
    def to_first_token(self) -> int:
        """From the head to the first token's text, which waits for the last one's where nothing is streamed; nothing
        where it is that of an earlier request, which this one repeats."""
        return max((self.first_token or self.ended) - self.began, 0)


@dataclass(slots=True)
class FinishedRequest:
    """One request at its end."""

    request_id: str
    endpoint: str
    client: str
    status: int
    times: Times
    noted: RequestContext | None = None
    finish_reason: str = ""
    error: str = ""
    replayed: bool = False
    deaths: int = 0  # that it has survived, as far as that is known: of schedulers, workers and frontends
    traceparent: str = ""
    tracestate: str = ""
    is_page: bool = False  # a file of the page, whose path may be that of something else, too

    @property
    def preemptions(self) -> int:
        return self.times.preemptions

    @property
    def generates(self) -> bool:
        return self.noted is not None or (self.endpoint in GENERATING and not self.is_page)
