"""When what happened to a job, from the stamps in its slots."""

from __future__ import annotations

from dataclasses import fields

from actorserve.http.generation.job import Job
from actorserve.http.generation.times import JobTimes
from actorserve.shm.table.layout import (
    ADMITTED,
    ARRIVAL,
    FIRST_TOKEN,
    FIRST_TOLD,
    GENERATION,
    LAST_TOKEN,
    RENDER_BEGUN,
    RENDERED,
    SCHEDULED,
    SETBACKS,
)
from actorserve.shm.table.stamps import Stamps, drafts, setbacks

FIRST = (
    ("render_begun", RENDER_BEGUN),
    ("admitted", ADMITTED),
    ("scheduled", SCHEDULED),
    ("first_token", FIRST_TOKEN),
    ("first_told", FIRST_TOLD),
)
LAST = (("rendered", RENDERED), ("last_token", LAST_TOKEN))
NAMES = tuple(field.name for field in fields(JobTimes))


def read_times(job: Job, stamps: Stamps) -> JobTimes:
    """Of a job that has ended, as it was at its end, else as it is now; all 0 where its slots are another's."""
    times = JobTimes()
    known = [words for choice in job.choices if choice.ref and (words := _words(job, choice.index, choice.ref, stamps))]
    if not known:
        return times
    for words in known:
        preemptions, deaths = setbacks(words[SETBACKS], words[GENERATION])
        times.preemptions += preemptions
        times.deaths = max(times.deaths, deaths)
        drafted, accepted = drafts(words)
        times.drafted += drafted
        times.accepted += accepted
    times.arrival = min(words[ARRIVAL] for words in known)
    for name, word in FIRST:
        setattr(times, name, min((words[word] for words in known if words[word] >= words[ARRIVAL]), default=0))
    for name, word in LAST:
        setattr(times, name, max((words[word] for words in known if words[word] >= words[ARRIVAL]), default=0))
    return times


def _words(job: Job, index: int, ref: int, stamps: Stamps) -> list[int]:
    """The slot's control words: as they were at its end, or are now."""
    return job.lives.get(index) or stamps.words(ref)
