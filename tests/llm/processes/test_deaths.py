"""Any actor may be killed while prompts run; when the supervisor gives up, or is gone, every waiting call says why."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from actorserve import LLM, EngineDead, SamplingParams
from actorserve.actors.llm.batch import PromptBatch
from tests.llm.scripts import actors_of

PROMPTS = [f"Tell me about number {index}." for index in range(32)]
PARAMS = [SamplingParams(temperature=0.8, seed=index, max_tokens=80, ignore_eos=True) for index in range(32)]
ENDLESS = SamplingParams(max_tokens=4000, ignore_eos=True)
BEGUN_S = 60.0


@pytest.fixture(scope="module")
def own() -> Iterator[LLM]:
    with LLM(max_num_seqs=8, threads=1, max_restarts=1) as made:
        yield made


def texts(llm: LLM) -> list[str]:
    return [output.outputs[0].text for output in llm.generate(PROMPTS, PARAMS, use_tqdm=False)]


def wait_until_one_has_ended(llm: LLM) -> None:
    """Then others are at all stages."""
    deadline = time.monotonic() + BEGUN_S
    while not llm._enqueued[0].ended and time.monotonic() < deadline:
        time.sleep(0.01)
    assert 0 < len(llm._enqueued[0].ended) < len(PROMPTS)


def test_32_prompts_survive_the_death_of_any_actor(own: LLM) -> None:
    expected = texts(own)
    for name in ("worker", "scheduler", "detokenizer-0", "renderer-0"):
        own.enqueue(PROMPTS, PARAMS)
        wait_until_one_has_ended(own)
        os.kill(actors_of(own.pid)[name], signal.SIGKILL)
        assert [output.outputs[0].text for output in own.wait_for_completion()] == expected, name


def test_every_waiting_call_is_told_why_it_is_over(own: LLM) -> None:
    said: list[str] = []
    pids = actors_of(own.pid).values()
    assert len(pids) == 6  # four actors and their two templates

    def wait(call: Callable[[], object]) -> None:
        with pytest.raises(EngineDead) as caught:
            call()
        said.append(str(caught.value))

    os.kill(actors_of(own.pid)["scheduler"], signal.SIGSTOP)  # it answers nobody
    calls = [lambda: own.generate("Hello", ENDLESS, use_tqdm=False), own.reset_prefix_cache]
    threads = [threading.Thread(target=wait, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    own.enqueue("Hello", ENDLESS)
    os.kill(actors_of(own.pid)["renderer-0"], signal.SIGKILL)  # it has been restarted once: --max-restarts
    with pytest.raises(EngineDead, match=r"renderer-0 ended .*killed by SIGKILL.*died too often"):
        own.wait_for_completion()
    for thread in threads:
        thread.join()
    assert len(said) == 2 and all("died too often" in one for one in said)
    for call in (lambda: own.generate("Hello"), own.reset_prefix_cache):
        with pytest.raises(EngineDead, match="died too often"):
            call()
    own.close()
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_who_asks_in_the_very_moment_of_the_end_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind the last turn of the engine's loop, and before the loop is closed."""
    own, waits, said = LLM(worker="scripted", max_num_seqs=2), threading.Event(), list[str]()
    engine, lock = own._engine, own._engine._ending
    close = engine._context.close

    class Seen:
        """The lock, which tells that somebody else waits for it."""

        def __enter__(self) -> None:
            if not engine.is_own_thread:
                waits.set()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    def ask() -> None:
        with pytest.raises(EngineDead) as caught:
            engine.submit(PromptBatch([]))
        said.append(str(caught.value))

    asking = threading.Thread(target=ask, daemon=True)

    def ask_and_close() -> None:
        waits.clear()
        asking.start()
        waits.wait()
        close()

    monkeypatch.setattr(engine, "_ending", Seen())
    monkeypatch.setattr(engine._context, "close", ask_and_close)
    own.close()
    asking.join(BEGUN_S)
    assert said == ["the LLM object is closed"]
