"""Between the engine's thread and a reader: what stands behind what, also where both are told as one."""

from __future__ import annotations

import queue
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve import CompletionOutput, LLMEngine, RequestOutput, RequestOutputKind
from actorserve.actors.llm.outputs import Logprobs, completions
from actorserve.actors.llm.streaming.stream import OutputStream
from actorserve.actors.protocol.messages import TokenLogprobs
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.generation.job import Job


def output(text: str, finished: bool = False) -> RequestOutput:
    return RequestOutput("id", "prompt", [1], None, [CompletionOutput(0, text, [5] * len(text), 0.0, None)], finished)


@pytest.mark.parametrize("kind", RequestOutputKind)
def test_a_failure_behind_an_output_that_nobody_took_is_told(kind: RequestOutputKind) -> None:
    told: list[int] = []
    stream = OutputStream(kind, lambda _: "", lambda: told.append(1))
    stream.put(output("a"))
    stream.fail(ValueError("lost"))
    told.clear()
    found = stream.take()
    assert found is not None and found.outputs[0].text == "a" and not stream.ended
    assert told, "who was told once, of both, looks again"
    with pytest.raises(ValueError, match="lost"):
        stream.take()
    assert stream.ended


class Requests:
    """Stands for OpenRequests."""

    def ended(self, request_id: str) -> None:
        """Nothing is running."""


def test_others_lose_nothing_when_one_fails() -> None:
    engine = LLMEngine.__new__(LLMEngine)
    engine._requests, engine._news = Requests(), queue.SimpleQueue()  # type: ignore[assignment]
    engine._batches, engine._errors = {}, []
    streams: dict[str, OutputStream] = {}
    for name in "abc":
        tell = lambda name=name: engine._news.put(name)  # noqa: E731
        streams[name] = OutputStream(RequestOutputKind.CUMULATIVE, lambda _: "", tell)
        batch: Any = SimpleNamespace(request=SimpleNamespace(stream=streams[name]))
        engine._batches[name] = batch
    streams["a"].put(output("first", True))
    streams["b"].fail(ValueError("too long"))
    streams["c"].put(output("last", True))
    assert [one.outputs[0].text for one in engine.step()] == ["first", "last"]
    assert engine.has_unfinished_requests()
    with pytest.raises(ValueError, match="too long"):
        engine.step()
    assert not engine.has_unfinished_requests() and engine.step() == []


async def test_outputs_that_were_told_do_not_grow() -> None:
    """Nor are the logprobs of earlier tokens made again."""
    job = Job([TextPrompt("a")], [b""])
    (choice,) = job.choices
    made: dict[int, Logprobs] = {}

    def told() -> CompletionOutput:
        return completions(job, 1, True, True, made)[0]

    outputs = []
    for token in range(3):
        choice.ids.append(token)
        choice.logprobs.append(TokenLogprobs(b"x", token, -1.0, 1))
        outputs.append(told())
    assert [one.token_ids for one in outputs] == [[0], [0, 1], [0, 1, 2]]
    assert [len(one.logprobs or ()) for one in outputs] == [1, 2, 3]
    assert outputs[2].logprobs is not None and outputs[0].logprobs is not None
    assert outputs[2].logprobs[0] is outputs[0].logprobs[0] and [one.cumulative_logprob for one in outputs] == [
        -1,
        -2,
        -3,
    ]
