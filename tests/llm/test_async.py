"""AsyncLLM and LLMEngine: outputs as they come, in each kind, and what becomes of them when somebody ends them."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Iterable
from typing import Any

import psutil
import pytest

from actorserve import (
    LLM,
    AsyncEngineArgs,
    AsyncLLM,
    AsyncLLMEngine,
    EngineArgs,
    InputStreamError,
    LLMEngine,
    RequestOutput,
    RequestOutputKind,
    SamplingParams,
    StreamingInput,
)

CUMULATIVE, DELTA, FINAL = RequestOutputKind
LONG = 4000


@pytest.fixture
def engine(llm: LLM) -> AsyncLLM:
    return AsyncLLM.of(llm)


def asked(kind: RequestOutputKind, n: int = 2, max_tokens: int = 30) -> SamplingParams:
    return SamplingParams(
        n=n, temperature=0.8, seed=5, max_tokens=max_tokens, ignore_eos=True, logprobs=1, output_kind=kind
    )


def kill_worker(engine: AsyncLLM) -> None:
    for child in psutil.Process(engine._llm.pid).children():
        if " ".join(child.cmdline()).strip() == "actorserve: worker":
            os.kill(child.pid, signal.SIGKILL)


async def outputs_of(engine: AsyncLLM, kind: RequestOutputKind, request_id: str) -> list[RequestOutput]:
    return [output async for output in engine.generate("Once upon a time", asked(kind), request_id)]


async def test_each_kind_tells_the_same(engine: AsyncLLM) -> None:
    kinds = {kind: outputs_of(engine, kind, f"of-{kind.name}") for kind in RequestOutputKind}
    told = dict(zip(kinds, await asyncio.gather(*kinds.values()), strict=True))
    (whole,) = told[FINAL]
    assert whole.finished and whole.request_id == "of-FINAL_ONLY" and whole.prompt == "Once upon a time"
    assert [len(one.token_ids) for one in whole.outputs] == [30, 30]
    assert len(told[CUMULATIVE]) > 3 and told[CUMULATIVE][-1].outputs == whole.outputs
    for output in told[CUMULATIVE]:
        assert all(whole.outputs[one.index].text.startswith(one.text) for one in output.outputs)
    assert len(told[DELTA]) > 3
    for answer in whole.outputs:
        parts = [one for output in told[DELTA] for one in output.outputs if one.index == answer.index]
        assert "".join(one.text for one in parts) == answer.text
        assert [token for one in parts for token in one.token_ids] == answer.token_ids
        assert [logprob for one in parts for logprob in one.logprobs or []] == answer.logprobs
        assert [one.finish_reason for one in parts if one.finish_reason] == ["length"]
    for outputs in told.values():
        assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]


async def test_a_slow_reader_misses_nothing(engine: AsyncLLM) -> None:
    (whole,) = await outputs_of(engine, FINAL, "quick")
    text = ""
    async for output in engine.generate("Once upon a time", asked(DELTA, n=2), "slow"):
        text += "".join(one.text for one in output.outputs if one.index == 0)
        await asyncio.sleep(0.1)
    assert text == whole.outputs[0].text


async def test_an_abort_ends_it_with_what_there_is(engine: AsyncLLM) -> None:
    seen: list[RequestOutput] = []
    async for output in engine.generate("Once upon a time", asked(CUMULATIVE, 1, LONG), "long"):
        seen.append(output)
        if len(seen) == 2:
            with pytest.raises(ValueError, match="'long' is under way"):
                await anext(engine.generate("again", None, "long"))
            await engine.abort(["long", "nobody"])
    assert seen[-1].finished and seen[-1].outputs[0].finish_reason == "abort" and seen[-1].outputs[0].text


async def test_an_abort_of_one_that_waits_for_others(engine: AsyncLLM) -> None:
    """Behind more than run, and are kept waiting by the actors: it has not begun."""
    names = [f"many-{number}" for number in range(40)]
    many = [asyncio.ensure_future(anext(engine.generate("Once", asked(FINAL, 1, LONG), name))) for name in names]
    waits = asyncio.ensure_future(anext(engine.generate("Once", asked(FINAL, 2), "waits")))
    while not waits.done():
        await engine.abort("waits")
        await asyncio.sleep(0)
    output = waits.result()
    assert output.finished and output.prompt == "Once" and output.request_id == "waits"
    assert [(one.text, one.finish_reason) for one in output.outputs] == [("", "abort")] * 2
    await engine.abort(names)
    ends = {output.outputs[0].finish_reason for output in await asyncio.gather(*many)}
    assert "abort" in ends and ends <= {"abort", "length"}, "where a machine is busy, some may be done by then"


async def test_prompt_logprobs_are_there_in_each_kind(engine: AsyncLLM) -> None:
    told = []
    for kind in RequestOutputKind:
        params = SamplingParams(max_tokens=5, temperature=0, prompt_logprobs=1, output_kind=kind)
        *_, last = [output async for output in engine.generate("Once upon a time", params, f"prompt-{kind.name}")]
        told.append(last.prompt_logprobs)
    assert told[0] is not None and told[0][0] is None and told[0][1] and told == [told[0]] * 3


async def test_who_stops_reading_or_asks_wrongly_leaves_nothing(engine: AsyncLLM) -> None:
    stream = engine.generate("Once upon a time", asked(DELTA, 1, LONG), "left")
    await anext(stream)
    await stream.aclose()
    with pytest.raises(ValueError, match="logprobs"):
        await anext(engine.generate("x", SamplingParams(logprobs=1000), "wrong"))
    (output,) = [one async for one in engine.generate("The fox", SamplingParams(output_kind=FINAL, seed=1), "left")]
    assert output.finished and not len(engine._requests)


def test_a_loop_that_closes_while_it_is_told_harms_nobody_else(
    engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop, stream = asyncio.new_event_loop(), engine.generate("Once upon a time", asked(DELTA, 1, LONG), "closes")
    loop.run_until_complete(anext(stream))
    loop.close()
    with monkeypatch.context() as patch:
        patch.setattr(loop, "is_closed", lambda: False)  # who asks may be told so just before it closes
        asyncio.run(engine.abort("closes"))
        (output,) = engine._llm.generate("The fox", SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.finished and not engine.errored
    asyncio.run(stream.aclose())


async def test_who_gives_up_while_it_begins_leaves_nothing(engine: AsyncLLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its thread goes on, and its id is taken until then."""
    prepare, go_on, begins = engine._llm.prepare, threading.Event(), threading.Event()

    def slowly(*given: Any) -> Any:
        begins.set()
        assert go_on.wait(60)
        return prepare(*given)

    monkeypatch.setattr(engine._llm, "prepare", slowly)
    asking = asyncio.create_task(outputs_of(engine, CUMULATIVE, "given up"))
    assert await asyncio.to_thread(begins.wait, 60)
    with pytest.raises(ValueError, match="under way"):
        await outputs_of(engine, CUMULATIVE, "given up")
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    go_on.set()
    async with asyncio.timeout(60):
        while len(engine._requests):
            await asyncio.sleep(0.01)
    assert len(await outputs_of(engine, FINAL, "given up")) == 1


async def test_a_death_is_not_seen(engine: AsyncLLM) -> None:
    (whole,) = await outputs_of(engine, FINAL, "before")
    text, killed = "", False
    async for output in engine.generate("Once upon a time", asked(DELTA), "through"):
        text += "".join(one.text for one in output.outputs if one.index == 0)
        if not killed:
            killed = True
            kill_worker(engine)
    assert killed and text == whole.outputs[0].text


async def test_it_sleeps_and_its_workers_are_called(engine: AsyncLLM) -> None:
    await engine.sleep(level=1)
    assert await engine.is_sleeping()
    waiting = asyncio.create_task(outputs_of(engine, FINAL, "waits"))
    await engine.wake_up()
    assert (await waiting)[0].finished and not await engine.is_sleeping()
    assert await engine.collective_rpc("check_health") == [True]
    assert await engine.reset_prefix_cache() and engine.is_running and not engine.errored
    await engine.check_health()


PARTS = ([11, 12, 13, 14], 1), ([15, 16], 5), ("The fox", 3), ([17], 4)


async def parts_of(given: Iterable[tuple[Any, int]], kind: RequestOutputKind) -> AsyncIterator[StreamingInput]:
    for prompt, most in given:
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=most, output_kind=kind)
        yield StreamingInput(prompt, params)


async def expected_parts(engine: AsyncLLM) -> list[tuple[list[int], list[int]]]:
    """The prompt and the answer of each part, asked one by one."""
    tokenizer = await engine.get_tokenizer()
    tokens: list[int] = []
    found: list[tuple[list[int], list[int]]] = []
    for prompt, most in PARTS:
        tokens = tokens + (tokenizer.encode(prompt, add_special_tokens=False) if isinstance(prompt, str) else prompt)
        params = SamplingParams(temperature=0, ignore_eos=True, max_tokens=most, output_kind=FINAL)
        (output,) = [one async for one in engine.generate(tokens, params, "alone")]
        found.append((tokens, output.outputs[0].token_ids))
        tokens = tokens + output.outputs[0].token_ids[:-1]
    return found


@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA])
async def test_a_prompt_may_come_in_parts(engine: AsyncLLM, kind: RequestOutputKind) -> None:
    """Each is computed behind all before it and all but the last token of their answers; a death changes nothing."""
    told: dict[tuple[int, ...], list[int]] = {}
    async for output in engine.generate(parts_of(PARTS, kind), SamplingParams(max_tokens=1), "parts"):
        (one,) = output.outputs
        before = told.get(tuple(output.prompt_token_ids), [])
        told[tuple(output.prompt_token_ids)] = one.token_ids if kind is CUMULATIVE else before + one.token_ids
        assert not output.finished and output.request_id == "parts"
        if len(told) == 2 and not before:
            kill_worker(engine)
    assert [(list(prompt), answer) for prompt, answer in told.items()] == await expected_parts(engine)


async def test_parts_end_with_an_abort_or_an_error_of_their_own(engine: AsyncLLM) -> None:
    seen = asyncio.Event()

    async def waits() -> AsyncIterator[StreamingInput]:
        yield StreamingInput([11, 12])
        seen.set()
        await asyncio.Event().wait()

    async def fails() -> AsyncIterator[StreamingInput]:
        yield StreamingInput([11, 12])
        raise OSError("the line is cut")

    params = SamplingParams(max_tokens=2, output_kind=DELTA)

    async def outputs(parts: AsyncIterator[StreamingInput], params: SamplingParams = params) -> list[RequestOutput]:
        return [one async for one in engine.generate(parts, params, "own")]

    waiting = asyncio.create_task(outputs(waits()))
    await seen.wait()
    with pytest.raises(ValueError, match="'own' is under way"):
        await outputs(waits())
    await engine.abort("own")
    assert sum(len(one.outputs[0].token_ids) for one in await waiting) == 2
    with pytest.raises(InputStreamError, match="the line is cut"):
        await outputs(fails())
    for wrong in ({"n": 2}, {"stop": ["a"]}, {"output_kind": FINAL}, {"prompt_logprobs": 1}):
        with pytest.raises(ValueError, match=f"sampling_params: {next(iter(wrong))}"):
            await outputs(waits(), SamplingParams(**wrong))
    with pytest.raises(ValueError, match="a prompt must be a text, token ids"):
        await outputs(parts_of([({}, 1)], DELTA))


def test_requests_are_stepped(llm: LLM) -> None:
    engine = LLMEngine.of(llm)
    for number in range(4):
        engine.add_request(str(number), f"Number {number} is", asked(RequestOutputKind(number % 3), 1))
    engine.add_request("long", "Once", asked(CUMULATIVE, 1, LONG))
    with pytest.raises(ValueError, match="request_id: '0' is under way"):
        engine.add_request("0", "again")
    assert engine.get_num_unfinished_requests() == 5
    told: dict[str, list[RequestOutput]] = {}
    while engine.has_unfinished_requests():
        for output in engine.step():
            told.setdefault(output.request_id, []).append(output)
        if set(map(str, range(4))) <= {name for name, outputs in told.items() if outputs[-1].finished}:
            engine.abort_request("long")
    assert not engine.step() and len(told["2"]) == 1 and len(told["0"]) > 1
    whole = engine.llm.generate("Number 1 is", asked(FINAL, 1), use_tqdm=False)[0].outputs[0]
    assert "".join(output.outputs[0].text for output in told["1"]) == whole.text


def test_functions_are_called_within_one_process() -> None:
    with LLM(in_process=True, max_num_seqs=2, threads=1) as inside:
        assert inside.apply_model(lambda model: type(model).__name__) == ["CpuModel"]
        assert inside.collective_rpc(lambda worker, more: worker.blocks + more, args=(1,))[0] > 1
        assert inside.collective_rpc("check_health") == [True]
    args = AsyncEngineArgs(max_num_seqs=2, worker="scripted", enable_log_requests=True)
    assert repr(EngineArgs("m", block_size=8)) == "EngineArgs(model='m', block_size=8)"
    with AsyncLLMEngine.from_engine_args(args) as outside:
        with pytest.raises(ValueError, match="in_process=True"):
            outside._llm.apply_model(str)
        with pytest.raises(ValueError, match="method must be among"):
            outside._llm.collective_rpc("nothing")


def test_questions_without_an_answer_are_not_left_behind() -> None:
    """What asyncio says of a task that is destroyed goes to standard error at the end of the process."""
    script = (
        "import actorserve, asyncio, gc\n"
        "llm = actorserve.LLM(worker='scripted', max_num_seqs=2)\n"
        "async def never(_):\n    await asyncio.Event().wait()\n"
        "import threading\n"
        "asked = threading.Thread(target=lambda: llm._engine.ask(never, 60, 'x'), daemon=True)\n"
        "asked.start()\n"
        "while not llm._engine._asked: pass\n"
        "stop = llm._engine._loop.stop\n"
        "llm._engine._loop.stop = lambda: (gc.collect(), stop())\n"
        "llm.close()\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=120, check=True)
    assert "Task was destroyed" not in done.stderr and "never awaited" not in done.stderr, done.stderr


def test_a_server_is_started_as_a_module() -> None:
    command = (sys.executable, "-m", "actorserve.entrypoints.openai.api_server")
    done = subprocess.run([*command, "--help"], capture_output=True, text=True, timeout=120, check=True)
    assert "--max-num-seqs" in done.stdout
