"""Jobs that stand for a run: its own, and one for each who reads its events beside that."""

from __future__ import annotations

from actorserve.actors.protocol.topics.prompts import TextPrompt

from ....errors import ApiError
from ....generation.job import Job

Usage = tuple[int, int, int, int]  # tokens of prompt and answer, cached, of thinking


class RunReaders:
    """Those of one run. `job` begins, is written and ends as any other job."""

    def __init__(self) -> None:
        self.job = self._new_job()
        self._all = [self.job]

    def _new_job(self) -> Job:
        return Job([TextPrompt("")], [b""])

    def add(self) -> Job:
        """One more, until `remove`: it is where the run is."""
        job = self._new_job()
        self._all.append(job)
        if self.job.has_started:
            self._wake(job)
        if self.job.done.done():
            own, error = self.job.choices[0], self.job.done.exception()
            if isinstance(error, ApiError):
                job.fail(error)
            else:
                usage = own.prompt_tokens, own.tokens, own.cached_tokens, own.thought
                self._end(job, own.finish_reason or "", usage)
        return job

    def remove(self, job: Job) -> None:
        self._all.remove(job)

    def wake(self) -> None:
        """There is something to write."""
        for job in self._all:
            self._wake(job)

    def _wake(self, job: Job) -> None:
        choice = job.choices[0]
        choice.tokens = max(1, choice.tokens)
        if not job.started.done():
            job.started.set_result(None)
        if job.listener is not None:
            job.listener.update(choice)

    def end(self, reason: str, usage: Usage) -> None:
        """All is written."""
        for job in self._all:
            self._end(job, reason, usage)

    def _end(self, job: Job, reason: str, usage: Usage) -> None:
        choice = job.choices[0]
        choice.prompt_tokens, choice.tokens, choice.cached_tokens, choice.thought = usage
        choice.finish_reason = reason
        if job.listener is not None:
            job.listener.update(choice)
        if not job.done.done():
            job.done.set_result(None)

    def fail(self, error: ApiError) -> None:
        """It cannot go on, or shall not."""
        for job in self._all:
            job.fail(error)
