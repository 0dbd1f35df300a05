"""What comes of one prompt, as it comes: from the engine's thread to whoever waits for it.

What nobody has taken yet is one output: newer text is added to it, so that a slow reader costs no more than the answer.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from actorserve.http.generation.choice import Choice
from actorserve.http.generation.job import Job

from ..batch import Decode, PromptBatch, PromptRequest
from ..outputs import CompletionOutput, Logprobs, RequestOutput
from ..sampling_params import RequestOutputKind


@dataclass(frozen=True)
class StreamedRequest(PromptRequest):
    """A prompt whose output is told as it comes."""

    stream: OutputStream

    def new_job(self) -> Job:
        job = super().new_job()
        if self.params.output_kind is not RequestOutputKind.FINAL_ONLY:
            job.listen(Listener(self, job, self.stream))
        return job


class Listener:
    """The engine's thread: what a job has now, given to the stream."""

    def __init__(self, wanted: StreamedRequest, job: Job, stream: OutputStream) -> None:
        self._wanted, self._job, self._stream = wanted, job, stream
        self._logprobs: dict[int, Logprobs] = {}

    def update(self, choice: Choice) -> None:
        """New text, or an end; that of all choices is told by the batch."""
        if all(one.finish_reason is not None for one in self._job.choices):
            return
        output = self._wanted.output(self._job, self._stream.decode, self._logprobs)
        if self._wanted.params.output_kind is RequestOutputKind.DELTA:
            output = replace(output, outputs=[one for one in output.outputs if one.index == choice.index])
        self._stream.put(replace(output, finished=False))


class OutputStream:
    """Between both threads. `tell`: something is there now; called by the engine's thread."""

    def __init__(self, kind: RequestOutputKind, decode: Decode, tell: Callable[[], None]) -> None:
        self.decode = decode
        self.ended = False  # all of it was taken, or it failed
        self._kind, self._tell = kind, tell
        self._lock = threading.Lock()
        self._output: RequestOutput | None = None
        self._error: Exception | None = None
        self._told: dict[int, tuple[int, int, int]] = {}  # by choice: characters, tokens, logprobs that were put

    def put(self, output: RequestOutput) -> None:
        """The whole output, as far as it has come."""
        with self._lock:
            if self._kind is RequestOutputKind.DELTA:
                output = replace(output, outputs=[self._new(one) for one in output.outputs])
                if self._output is not None:
                    output = _joined(self._output, output)
            self._output = output
        self._tell()

    def fail(self, error: Exception) -> None:
        """Nothing more comes."""
        with self._lock:
            self._error = error
        self._tell()

    def take(self) -> RequestOutput | None:
        """What is there; None if nothing is. Raises what it has failed with, behind what came before that."""
        with self._lock:
            output, self._output = self._output, None
            error = self._error
            self.ended = error is not None if output is None else output.finished
        if output is None and error is not None:
            raise error
        if error is not None and not self.ended:
            self._tell()  # the one who was told of both took this for all
        return output

    def _new(self, one: CompletionOutput) -> CompletionOutput:
        """What was not put before."""
        characters, tokens, logprobs = self._told.get(one.index, (0, 0, 0))
        told = one.logprobs
        self._told[one.index] = len(one.text), len(one.token_ids), len(told or ())
        rest = None if told is None else told[logprobs:]
        return replace(one, text=one.text[characters:], token_ids=one.token_ids[tokens:], logprobs=rest)


def _joined(first: RequestOutput, second: RequestOutput) -> RequestOutput:
    """Two parts that follow each other, as one."""
    outputs = {one.index: one for one in first.outputs}
    for one in second.outputs:
        before = outputs.get(one.index)
        outputs[one.index] = one if before is None else _extended(before, one)
    return replace(second, outputs=[outputs[index] for index in sorted(outputs)])


def _extended(before: CompletionOutput, one: CompletionOutput) -> CompletionOutput:
    told: Logprobs | None = one.logprobs
    if before.logprobs is not None:
        told = before.logprobs + (told or [])
    return replace(one, text=before.text + one.text, token_ids=before.token_ids + one.token_ids, logprobs=told)


class StreamBatch(PromptBatch):
    """One streamed prompt."""

    def __init__(self, wanted: StreamedRequest) -> None:
        super().__init__([wanted])
        self.request = wanted

    def end(self, index: int, outcome: object) -> None:
        """Its whole output, or as a text why there is none."""
        super().end(index, outcome)
        if isinstance(outcome, RequestOutput):
            self.request.stream.put(outcome)
        else:
            self.request.stream.fail(ValueError(str(outcome)))

    def fail(self, error: Exception) -> None:
        super().fail(error)
        self.request.stream.fail(error)
