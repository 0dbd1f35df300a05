"""What is asked of other actors beside prompts, when nobody waits for it any more."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future
from typing import Any

import pytest

from actorserve import LLM, SamplingParams


@pytest.mark.parametrize("why", [KeyboardInterrupt, TimeoutError])
def test_what_its_caller_gives_up_is_given_up(
    llm: LLM, monkeypatch: pytest.MonkeyPatch, why: type[BaseException]
) -> None:
    """As a beam search behind Ctrl-C; what is asked later is answered."""
    begun, ended = threading.Event(), threading.Event()

    async def ask(_: Any) -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    def interrupted(_: Future[Any], __: float | None = None) -> None:
        assert begun.wait(60)
        raise why

    monkeypatch.setattr(Future, "result", interrupted)
    with pytest.raises(RuntimeError if why is TimeoutError else why):
        llm.engine.ask(ask, 60.0, "it was asked")
    monkeypatch.undo()
    assert ended.wait(60)
    (output,) = llm.generate("One and one is", SamplingParams(max_tokens=2), use_tqdm=False)
    assert output.finished
