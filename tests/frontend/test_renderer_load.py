"""A prompt goes to the renderer that has least of its frontend: what this counts for each comes back to nothing."""

from __future__ import annotations

from actorserve.actors.protocol.messages import Failed, Finish, Rendered
from actorserve.http.generation.job import Job

from .others import Others, end, job


def submitted(others: Others, choices: int) -> tuple[Job, list[int]]:
    asked = job(choices=choices)
    others.engine.submit(asked)
    (render,) = others.received("renderer-0")
    assert others.engine.renderers.in_flight == choices
    return asked, render.refs


async def test_an_end_may_come_before_the_renderers_own_word(others: Others) -> None:
    asked, refs = submitted(others, 2)
    others.put_prompt(refs)
    others.tell("detokenizer-0", *(end(ref, "Bye", Finish.LENGTH) for ref in refs))
    await asked.done
    assert not others.engine.renderers.in_flight
    others.tell("renderer-0", Rendered(refs, 3))
    assert not others.engine.renderers.in_flight
    others.engine.release(asked)


async def test_some_choices_may_be_gone_when_the_others_are_rendered(others: Others) -> None:
    asked, refs = submitted(others, 2)
    others.put_prompt(refs)
    others.tell("renderer-0", Failed(refs[:1], 499, "the client has gone"), Rendered(refs[1:], 3))
    assert not others.engine.renderers.in_flight
    others.tell("renderer-0", Rendered(refs[1:], 3))  # told twice by a successor
    assert not others.engine.renderers.in_flight
    others.engine.release(asked)
