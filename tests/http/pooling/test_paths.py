"""Paths of models that pool before an engine that the test plays."""

from __future__ import annotations

from array import array
from typing import Any

import msgspec
import pytest

from actorserve.actors.model.pooling.spec import MEAN, SEQUENCE, TOKEN, PoolingSpec
from actorserve.actors.protocol.messages import Finish
from tests.http.fakes import rendered, say
from tests.http.serving import serving

EMBEDS = PoolingSpec(tasks=["embed", "token_embed"], base="", methods=[MEAN], normalize=False, hidden=2, width=2)
CLASSIFIES = msgspec.structs.replace(EMBEDS, tasks=["classify"], head=SEQUENCE, labels=["good", "bad"])
REWARDS = msgspec.structs.replace(EMBEDS, tasks=["token_classify"], head=TOKEN, labels=["good", "bad"])


@pytest.mark.parametrize(
    ("spec", "field"),
    [(EMBEDS, "embedding"), (CLASSIFIES, "probs"), (REWARDS, "data")],
    ids=["embeds", "classifies", "rewards"],
)
@pytest.mark.parametrize("asked", [{"input": "a"}, {"messages": [{"role": "user", "content": "a"}]}])
async def test_an_invocation_is_for_what_the_model_makes(spec: PoolingSpec, field: str, asked: dict[str, Any]) -> None:
    async with serving(pooling=spec) as served:
        client = await served.client()
        client.send("POST", "/invocations", asked)
        job = await served.job()
        rendered(job)
        job.choices[0].pooled = 1, 2, array("f", [0.25, 0.75]).tobytes()
        say(job, 0, "", 1, Finish.STOP)
        answer = await client.answer()
        assert answer.status == 200, answer.body
        assert field in answer.json["data"][0]


async def test_an_input_type_that_no_model_knows() -> None:
    async with serving(pooling=EMBEDS) as served:
        for path, given in (("/v1/embeddings", {"input": "a"}), ("/v2/embed", {"texts": ["a"]})):
            answer = await served.ask("POST", path, {**given, "input_type": "nonsense"})
            assert answer.status == 400 and b"input_type: 'nonsense'" in answer.body
