"""Where a request is, how long each stage took, and what it waits for: conclusions from the words of its slot, of the
board and of /proc. Says nothing to anyone.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

import msgspec

from actorserve.shm.table.stamps import Stamp

from ..protocol.kinds import HTTP2, RELAY, kind_of
from ..protocol.messages import FAILURES, Finish
from ..protocol.topology import System
from ..telemetry.snapshot import ActorStatus, Snapshot
from .requests import Facts
from .table import duration

SECOND = 1_000_000_000
# whose end is no stamp
UNTOLD = FAILURES | {Finish.ABORT}
STAGES = (  # name, what begins it, what ends it
    ("queued to a renderer", None, Stamp.RENDER_BEGUN),
    ("rendering", Stamp.RENDER_BEGUN, Stamp.RENDERED),
    ("queued to the scheduler", Stamp.RENDERED, Stamp.ADMITTED),
    ("waiting for its first step", Stamp.ADMITTED, Stamp.SCHEDULED),
    ("prefill", Stamp.SCHEDULED, Stamp.FIRST_TOKEN),
    ("decode", Stamp.FIRST_TOKEN, Stamp.LAST_TOKEN),
    ("telling its end", Stamp.LAST_TOKEN, Stamp.END_TOLD),
)
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
    Finish.ADAPTER: "its adapter was unloaded, or its files were changed or could not be read any more",
}


class Stage(msgspec.Struct, frozen=True):
    """A part of a request's way."""

    name: str
    seconds: float
    over: bool  # False: it is still there


class Setback(msgspec.Struct, frozen=True):
    """An actor that was started while the request was under way: in the place of a dead one."""

    actor: str
    at_s: float  # since the request's arrival
    restarts: int


PICTURES = "processing its pictures"
POOLED = "what its model makes of the prompt is there"


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
    computed_tokens: int
    generated_tokens: int
    limit: int
    tokens_s: float | None  # in decode
    drafts_accepted: float | None  # the share, of all requests since the server began; None: there were no drafts
    text_lag_tokens: int  # generated and not sent as text; what is not streamed is sent at its end
    client_slow_s: float | None  # since when its client is too slow for what is written to it
    queue_place: int | None  # 1: the next one
    queue_length: int
    engine: int | None  # that it belongs to, where there are several
    model: str  # that is asked, where there are several
    moves: int  # how often the engine has changed
    adapter: str  # its name, if it has one
    preemptions: int
    deaths: int  # of schedulers and workers
    replaced: list[Setback]


@dataclass(frozen=True)
class Scene:
    """The server at one moment."""

    system: System
    snapshot: Snapshot
    everything: list[Facts]
    now_ns: int

    def kind(self, kind: str, engine: int | None = None) -> list[ActorStatus]:
        """All of a kind, or those of one engine."""
        specs = self.system.by_name
        found = [actor for actor in self.snapshot.actors if actor.kind == kind]
        return found if engine is None else [actor for actor in found if specs[actor.name].engine == engine]

    def of_model(self, kind: str, facts: Facts) -> list[ActorStatus]:
        """Those of a kind that are there for the model which is asked."""
        specs = self.system.by_name
        return [actor for actor in self.kind(kind) if specs[actor.name].model == facts.model]

    def scheduler(self, facts: Facts) -> ActorStatus:
        """Whose the request is."""
        return self.snapshot.actor(self.system.scheduler_of(facts.engine))

    def waiting(self, engine: int) -> list[Facts]:
        """Admitted there and without a row, the next one first."""
        own = (facts for facts in self.everything if facts.engine == engine)
        found = [facts for facts in own if facts.life.at.get(Stamp.ADMITTED) and _is_waiting(facts)]
        by_priority = self.system.config.scheduling_policy == "priority"
        return sorted(found, key=lambda f: (f.params.priority if by_priority else 0, f.life.at[Stamp.ADMITTED]))


def _is_waiting(facts: Facts) -> bool:
    return not facts.finish and not facts.held and facts.prompt is not None


def explain(scene: Scene, facts: Facts) -> Explanation:
    """What can be said of one choice."""
    queue = scene.waiting(facts.engine)
    place = next((at for at, other in enumerate(queue, 1) if other.ref == facts.ref), None)
    where = _where(scene, facts)
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
        waits_for=_waits_for(scene, facts, where, place),
        stages=_stages(facts, scene.now_ns, where == "ended"),
        pools=facts.params.sampling.pooling is not None,
        prompt_tokens=facts.prompt,
        cached_tokens=facts.cached,
        computed_tokens=facts.computed,
        generated_tokens=facts.generated,
        limit=facts.limit,
        tokens_s=(facts.generated - 1) / spent if facts.generated > 1 and spent > 0 else None,
        drafts_accepted=_accepted(scene),
        text_lag_tokens=0 if facts.finish in UNTOLD or life.at.get(Stamp.END_TOLD) else facts.generated - facts.text,
        client_slow_s=(scene.now_ns - facts.full_since) / SECOND if facts.full_since else None,
        queue_place=place,
        queue_length=len(queue),
        engine=facts.engine if len(scene.system.engines) > 1 and facts.prompt is not None else None,
        model=scene.system.models[facts.model].name if len(scene.system.models) > 1 else "",
        moves=facts.moves,
        adapter=facts.adapter,
        preemptions=life.preemptions,
        deaths=life.deaths,
        replaced=_replaced(scene, facts, where == "ended"),
    )


def _where(scene: Scene, facts: Facts) -> str:
    """The stage, by what has been published; stamps alone may be of what a death undid."""
    at = facts.life.at
    if facts.finish:
        return "ended" if facts.finish in UNTOLD or Stamp.END_TOLD in at else "telling its end"
    if facts.prompt is None:
        return _where_rendered(scene, facts)
    if Stamp.ADMITTED not in at:
        return "queued to the scheduler"
    if not facts.held:
        return "waiting for its first step" if Stamp.SCHEDULED not in at else "waiting to go on"
    if facts.generated:
        return "decode" if facts.computed >= facts.prompt else "computing again"
    return "prefill"


def _where_rendered(scene: Scene, facts: Facts) -> str:
    """A renderer works on the first choice of a request, and so does a media actor before it; all of one have the same
    arrival.
    """
    together = {other.ref for other in scene.everything if other.life.arrival == facts.life.arrival}
    if any(actor.hand in together for actor in scene.kind("media")):
        return PICTURES
    renderers = scene.of_model("renderer", facts)
    if any(actor.hand in together for actor in renderers):
        return "rendering"
    pending = any(actor.waiting_records for actor in renderers) or any(actor.state != "ready" for actor in renderers)
    begun = Stamp.RENDER_BEGUN in facts.life.at
    if facts.cancelled and not pending:
        return "ended"
    return "ended" if begun and not pending else "queued to a renderer"


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


def _stages(facts: Facts, now_ns: int, ended: bool) -> list[Stage]:
    """As far as it has come. The last one goes on until now, unless all is over."""
    at, found = facts.life.at, []
    for name, begins, ends in STAGES:
        begun = facts.life.arrival if begins is None else at.get(begins, 0)
        over = at.get(ends, 0)
        if not begun:
            break
        if ends is Stamp.LAST_TOKEN and not facts.finish:
            over = 0
        if over:
            found.append(Stage(name, max(0, over - begun) / SECOND, True))
            continue
        if not ended:
            found.append(Stage(name, max(0, now_ns - begun) / SECOND, False))
        break
    return found


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


# --- what it waits for ---------------------------------------------------------------------------------------------


def _waits_for(scene: Scene, facts: Facts, where: str, place: int | None) -> list[str]:
    if where == "ended":
        return []
    if where == PICTURES:
        found = [_actor(actor) for actor in scene.of_model("media", facts) if actor.hand]
    elif where in ("queued to a renderer", "rendering"):
        found = _of_media(scene, facts, where) + _of_renderers(scene, facts, where)
    elif where == "telling its end":
        found = []
    elif where == "queued to the scheduler":
        found = [_actor(scene.scheduler(facts))]
    elif held := scene.snapshot.held.get(facts.engine):
        found = [f"the engine, which is {held}"]
    elif where.startswith("waiting"):
        found = [*_troubles(scene, facts, "scheduler", "worker"), *_of_tiers(scene, facts, where)]
        found.append(_queue(scene, facts, place))
    else:
        found = _troubles(scene, facts, "worker", "scheduler") or ["the worker's next step"]
    if facts.cancelled:
        found.append("its client has gone: it ends as soon as the scheduler hears of it")
    return found + _of_text(scene, facts, where)


def _of_media(scene: Scene, facts: Facts, where: str) -> list[str]:
    """Pictures of a request come before its renderer."""
    if where == "rendering" or not scene.of_model("media", facts):
        return []
    actor = scene.snapshot.actor(scene.system.media_of(facts.slot, facts.model))
    waiting = int(actor.gauges.get("waiting", 0))
    if not waiting and actor.state == "ready":
        return []
    return [f"its pictures, if it has some, with those of {waiting} requests: {_actor(actor)}"]


def _of_tiers(scene: Scene, facts: Facts, where: str) -> list[str]:
    """KV blocks of a prompt are fetched before its first step."""
    waiting = int(scene.scheduler(facts).gauges.get("tier_waiting", 0))
    if not waiting or where != "waiting for its first step":
        return []
    return [f"KV blocks, if it is among the {waiting} who wait for some: {_actor(one)}" for one in scene.kind("porter")]


def _of_renderers(scene: Scene, facts: Facts, where: str) -> list[str]:
    renderers = scene.of_model("renderer", facts)
    if where == "rendering":
        renderers = [actor for actor in renderers if actor.hand] or renderers
    troubled = [actor for actor in renderers if actor.state != "ready"]
    return [_actor(actor) for actor in troubled or renderers]


def _of_text(scene: Scene, facts: Facts, where: str) -> list[str]:
    """Who is behind with what was generated."""
    detokenizer = scene.snapshot.actor(scene.system.detokenizer_of(facts.slot, facts.model))
    frontend = scene.snapshot.actor(scene.system.frontend_of(facts.slot))
    found = []
    due = facts.generated - facts.text if facts.params.stream or facts.finish else 0
    if (due > 0 and detokenizer.state != "ready") or (where == "telling its end" and due > 0):
        found.append(f"the text of {due} tokens: {_actor(detokenizer)}")
    if frontend.state != "ready":
        found.append(_actor(frontend))
    elif facts.full_since:
        since = duration((scene.now_ns - facts.full_since) / SECOND)
        found.append(f"its client, which reads too slowly: {frontend.name} has held text back for {since}")
        for kind, option in ((RELAY, "--uds"), (HTTP2, "--http2-port")):
            relays = [one for one in scene.kind(kind) if one.state != "ready"]
            found += [f"{_actor(relay)}, if its client came by {option}" for relay in relays]
    elif where == "telling its end" and not due:
        found.append(_actor(frontend))
    return found


def _queue(scene: Scene, facts: Facts, place: int | None) -> str:
    """Why the queue stands: its first one must go first, so what that lacks is what all lack."""
    queue, config = scene.waiting(facts.engine), scene.system.models[facts.model].config
    first = queue[0] if queue else facts
    gauges = scene.scheduler(facts).gauges
    running = sum(1 for other in scene.everything if other.held and other.engine == facts.engine)
    needed = -(-first.known // config.block_size)
    if running >= config.max_num_seqs:
        reason = f"a row: all {config.max_num_seqs} of --max-num-seqs are taken"
    elif gauges["blocks_total"] and gauges["blocks_free"] < needed:
        free, total = gauges["blocks_free"], gauges["blocks_total"]
        reason = f"KV blocks: up to {needed} are needed, {free} of {total} are free"
    else:
        reason = f"a step with room: one computes {config.max_num_batched_tokens} tokens at most"
    if place is None or place == 1:
        return reason
    return f"{place - 1} before it, the first of which waits for {reason}"


def _troubles(scene: Scene, facts: Facts, *kinds: str) -> list[str]:
    """Of the engine that the request belongs to."""
    system, engine = scene.system, facts.engine
    if engine in system.remote_engines and not scene.scheduler(facts).gauges["blocks_total"]:
        place = system.config.remote_engines[engine - system.remote_engines.start]
        return [f"its engine at {place}, which does not compute yet: {_actor(scene.scheduler(facts))}"]
    return [_actor(actor) for kind in kinds for actor in scene.kind(kind, facts.engine) if actor.state != "ready"]


def _actor(actor: ActorStatus) -> str:
    """An actor, and what keeps it."""
    text = actor.name if actor.state == "ready" else f"{actor.name}, which is {actor.state}"
    if actor.parked:
        text += f" (for {actor.parked})"
    if actor.state in ("stopped", "hung") and actor.heartbeat_s is not None:
        text += f" (its last heartbeat was {duration(actor.heartbeat_s)} ago)"
    if actor.oldest_s is not None and actor.oldest_s > 1:
        text += f"; of {actor.waiting_records} in its mailbox the oldest is {duration(actor.oldest_s)} old"
    return text


def take_scene(system: System, snapshot: Snapshot, everything: list[Facts]) -> Scene:
    """Of what has just been read."""
    return Scene(system, snapshot, everything, time.monotonic_ns())
