"""Where a request is, how long each stage took, and what it waits for: conclusions from the words of its slot, of the
board and of /proc. Says nothing to anyone.
"""

from __future__ import annotations

import msgspec

from actorserve.shm.table.stamps import Stamp

from ...protocol.kinds import kind_of
from ...protocol.messages import Finish
from ...telemetry.snapshot import ActorStatus
from ..requests import Facts
from .scene import SECOND, Scene
from .stages import UNTOLD, Stage, find_stages, find_where
from .waits import find_waits

POOLED = "what its model makes of the prompt is there"
ENDS = {
    Finish.STOP: "it ended with an end token",
    Finish.LENGTH: "it reached its length",
    Finish.STOP_STRING: "it ended with a stop string, or where it repeated itself",
    Finish.REPETITION: "it repeated itself",
    Finish.ABORT: "its client went away",
    Finish.REJECTED: "the waiting queue was full",
    Finish.ERROR: "the engine gave it up",
    Finish.GRAMMAR: "its grammar failed while it was generated",
    Finish.MEDIA: "one of its pictures could not be used",
    Finish.PLUGIN: "a logits processor failed, or took too long",
    Finish.UNHEEDED: "it asked for what a CPU alone does, such as a watermark, and no engine computes on one",
    Finish.UNLOADABLE: "its model could not be loaded",
    Finish.ADAPTER: "its adapter was unloaded, or its files were changed or could not be read any more",
}


class Setback(msgspec.Struct, frozen=True):
    """An actor that was started while the request was under way: in the place of a dead one."""

    actor: str
    at_s: float  # since the request's arrival
    restarts: int


class Explanation(msgspec.Struct, frozen=True, kw_only=True):
    """All about one choice. Times are in seconds."""

    slot: int
    ref: int
    request_id: str
    choice_seed: int
    age_s: float  # since it arrived
    where: str  # the stage that it is in, or "ended"
    ended: str | None  # why, once its last token is there
    waits_for: list[str]
    stages: list[Stage]
    pools: bool  # nothing is generated for it
    prompt_tokens: int | None
    cached_tokens: int
    computed_tokens: int | None  # None: its engine is elsewhere, which does not say it
    generated_tokens: int
    limit: int
    tokens_s: float | None  # in decode
    drafts_accepted: float | None  # the share, of all requests since the server began; None: there were no drafts
    text_lag_tokens: int  # generated and not sent as text; what is not streamed is sent at its end
    client_slow_s: float | None  # since when its client is too slow for what is written to it
    queue_place: int | None  # 1: the next one; None: it does not wait, or that is not known
    queue_length: int
    engine: int | None  # that it belongs to, where there are several
    model: str  # that is asked, where there are several
    moves: int  # how often the engine has changed
    adapter: str  # its name, if it has one
    preemptions: int
    deaths: int  # of schedulers and workers
    replaced: list[Setback]


def explain(scene: Scene, facts: Facts) -> Explanation:
    """What can be said of one choice."""
    place, queued = scene.place(facts)
    where = find_where(scene, facts)
    life = facts.life
    first, last = life.at.get(Stamp.FIRST_TOKEN), life.at.get(Stamp.LAST_TOKEN)
    spent = (last - first) / SECOND if first and last else 0.0
    return Explanation(
        slot=facts.slot,
        ref=facts.ref,
        request_id=facts.params.request_id,
        choice_seed=facts.params.sampling.seed,
        age_s=(scene.now_ns - life.arrival) / SECOND,
        where=where,
        ended=_end(facts, where),
        waits_for=find_waits(scene, facts, where, place),
        stages=find_stages(facts, scene.now_ns, where == "ended"),
        pools=facts.params.sampling.pooling is not None,
        prompt_tokens=facts.prompt,
        cached_tokens=facts.cached,
        computed_tokens=None if scene.is_elsewhere(facts) else facts.computed,
        generated_tokens=facts.generated,
        limit=facts.limit,
        tokens_s=(facts.generated - 1) / spent if facts.generated > 1 and spent > 0 else None,
        drafts_accepted=_accepted(scene),
        text_lag_tokens=0 if facts.finish in UNTOLD or life.at.get(Stamp.END_TOLD) else facts.generated - facts.text,
        client_slow_s=(scene.now_ns - facts.full_since) / SECOND if facts.full_since else None,
        queue_place=place,
        queue_length=queued,
        engine=facts.engine if len(scene.system.engines) > 1 and facts.prompt is not None else None,
        model=scene.system.models[facts.model].name if len(scene.system.models) > 1 else "",
        moves=facts.moves,
        adapter=facts.adapter,
        preemptions=life.preemptions,
        deaths=life.deaths,
        replaced=_replaced(scene, facts, where == "ended"),
    )


def _accepted(scene: Scene) -> float | None:
    gauges = scene.snapshot.sums("scheduler")
    return gauges["accepted_tokens"] / gauges["draft_tokens"] if gauges["draft_tokens"] else None


def _end(facts: Facts, where: str) -> str | None:
    if facts.finish == Finish.STOP and facts.params.sampling.pooling is not None:
        return POOLED
    if facts.finish:
        return ENDS[facts.finish]
    if where != "ended":
        return None
    return ENDS[Finish.ABORT] if facts.cancelled else "its prompt was refused, or could not be rendered"


def _replaced(scene: Scene, facts: Facts, ended: bool) -> list[Setback]:
    """Actors on its way whose present life began after it came."""
    own = {scene.system.frontend_of(facts.slot), scene.system.detokenizer_of(facts.slot, facts.model)}
    if scene.of_model("media", facts):
        own.add(scene.system.media_of(facts.slot, facts.model))
    last = max(facts.life.at.values(), default=facts.life.arrival)
    found = []
    for actor in scene.snapshot.actors:
        started = scene.now_ns - int(actor.up_s * SECOND)
        on_its_way = actor.name in own or _may_pass(scene, facts, actor)
        if actor.restarts and on_its_way and started > facts.life.arrival and not (ended and started > last):
            found.append(Setback(actor.name, (started - facts.life.arrival) / SECOND, actor.restarts))
    return found


def _may_pass(scene: Scene, facts: Facts, actor: ActorStatus) -> bool:
    """May any request pass this actor, or any of its engine?"""
    if kind_of(actor.kind).requests != "all":
        return False
    spec = scene.system.by_name[actor.name]
    mine = spec.engine == facts.engine or facts.moves > 0
    return spec.model == facts.model and (mine or not spec.traits.by_engine)
