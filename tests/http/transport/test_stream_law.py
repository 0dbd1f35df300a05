"""The law of streams: their texts are those of the whole answer, in whatever pieces they came."""

from __future__ import annotations

import asyncio

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from actorserve.actors.protocol.messages import Delta, Finish
from actorserve.http.generation.job import Job
from tests.http.serving import serving, text_of
from tests.http.transport.test_sse import CHAT, TEXT, begin

Turn = list[tuple[int, int, int]]  # of (choice, characters backward, characters forward)
TURNS = st.lists(st.lists(st.tuples(st.integers(0, 2), st.integers(0, 6), st.integers(0, 9)), max_size=6), max_size=12)
ALPHABET = 'ab"\\\n\u00e9\u4e2d\U0001f600\u2028 \x00'


def texts_of(choice: int) -> str:
    """What a choice says in all; as no two of them do."""
    return "".join(ALPHABET[(at * 7 + choice * 3 + at // 11) % len(ALPHABET)] for at in range(40))


def play(job: Job, turns: list[Turn], tail: int) -> list[str]:
    """Give a job these deltas, text that came before again now and then; then end all. Returns what was said."""
    said = [0, 0, 0]
    for turn in turns:
        for choice, back, forward in turn:
            whole, begin = texts_of(choice), max(0, said[choice] - back)
            end = min(len(whole), begin + forward)
            said[choice] = max(said[choice], end)
            job.delta(choice, Delta(0, begin, whole[begin:end], said[choice]), 0)
        job.flush()
    for choice in (2, 0, 1):
        whole, end = texts_of(choice), min(40, said[choice] + tail)
        job.delta(choice, Delta(0, said[choice], whole[said[choice] : end], end, Finish.LENGTH), 0)
        said[choice] = end
        if choice:
            job.flush()
    job.flush()
    return [texts_of(choice)[: said[choice]] for choice in range(3)]


@pytest.mark.parametrize("examples", [30, pytest.param(300, marks=pytest.mark.slow)])
def test_a_stream_says_what_the_whole_answer_says(examples: int) -> None:
    @settings(max_examples=examples)
    @given(turns=TURNS, tail=st.integers(0, 3), chatting=st.booleans(), early=st.booleans())
    def check(turns: list[Turn], tail: int, chatting: bool, early: bool) -> None:
        uvloop.run(both_ways(turns, tail, CHAT if chatting else TEXT, early))

    check()


async def both_ways(turns: list[Turn], tail: int, path: str, early: bool) -> None:
    async with serving() as served:
        client, job = await begin(served, path, n=3, stream_options={"include_usage": True})
        if not early:  # the stream has begun before the text comes
            job.delta(1, Delta(0, 0, "", 0), 0)
            job.flush()
            reading = asyncio.ensure_future(client.answer())
            await served.ask("GET", "/health")
            said = play(job, turns, tail)
            streamed = (await reading).events
        else:
            said = play(job, turns, tail)
            streamed = (await client.answer()).events
        client, job = await begin(served, path, n=3, stream=False)
        assert play(job, turns, tail) == said
        whole = (await client.answer()).json
    for choice in whole["choices"]:
        index, text = choice["index"], choice["message"]["content"] if path == CHAT else choice["text"]
        assert text == said[index] == text_of(streamed, index)
        ends = [part["finish_reason"] for event in streamed for part in event["choices"] if part["index"] == index]
        assert ends[-1] == choice["finish_reason"] == "length" and set(ends[:-1]) <= {None}
    assert streamed[-1]["usage"] == whole["usage"]
