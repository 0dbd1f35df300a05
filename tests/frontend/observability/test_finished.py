"""A request at its end, as logs and traces tell it."""

from __future__ import annotations

import pytest

from actorserve.actors.frontend.observability.finished import FinishedRequest, Times
from actorserve.actors.frontend.observability.log_lines import fields_of, text_of
from actorserve.actors.protocol.topics.prompts import TextPrompt
from actorserve.http.generation.job import Job
from actorserve.http.middleware.context import RequestContext

MS = 1_000_000


@pytest.mark.parametrize(("first_token", "told"), [(130 * MS, 30.0), (40 * MS, 0.0)])
async def test_a_repetition_waits_for_no_token_that_was_there(first_token: int, told: float) -> None:
    times = Times(began=100 * MS, ended=150 * MS, arrival=30 * MS, first_token=first_token, last_token=140 * MS)
    noted = RequestContext("r", "tiny", Job([TextPrompt("a")], [b""]))
    end = FinishedRequest("r", "/inference/v1/generate", "", 200, times, noted, replayed=True)
    assert fields_of(end)["first_token_ms"] == told
    assert f"first token {told}" in text_of(end)


@pytest.mark.parametrize(
    ("began", "stages"),
    [
        (30, {"queued": 5.0, "rendered": 5.0, "waiting": 10.0, "prefill": 20.0, "decode": 50.0}),
        (60, {"prefill": 10.0, "decode": 50.0}),
        (130, {}),
    ],
)
async def test_a_repetition_tells_the_stages_of_its_own_time(began: int, stages: dict[str, float]) -> None:
    times = Times(began=began * MS, ended=150 * MS, arrival=30 * MS, render_begun=35 * MS, rendered=40 * MS)
    times.scheduled, times.first_token, times.last_token = 50 * MS, 70 * MS, 120 * MS
    noted = RequestContext("r", "tiny", Job([TextPrompt("a")], [b""]))
    end = FinishedRequest("r", "/inference/v1/generate", "", 200, times, noted, replayed=True)
    names = ("queued", "rendered", "waiting", "prefill", "decode")
    told = fields_of(end)
    assert {name: told[f"{name}_ms"] for name in names if f"{name}_ms" in told} == stages
    assert [name for name in names if f"{name} " in text_of(end)] == list(stages)
