"""What a request waits for: whom its stage needs, and what keeps that actor."""

from __future__ import annotations

from ...protocol.kinds import HTTP2, RELAY
from ...telemetry.snapshot import ActorStatus
from ..requests import Facts
from ..table import duration
from .scene import SECOND, Scene
from .stages import PICTURES


def find_waits(scene: Scene, facts: Facts, where: str, place: int | None) -> list[str]:
    """One line each; `place`: in the queue, if it stands in it."""
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
    elif scene.is_elsewhere(facts):
        found = _troubles(scene, facts, "scheduler") or [f"a step of its engine at {scene.address(facts)}"]
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
    first = queue[0] if queue and place is not None else facts
    gauges = scene.scheduler(facts).gauges
    running = sum(1 for other in scene.everything if other.held and other.engine == facts.engine)
    needed = -(-first.known // config.block_size)
    if running >= config.max_num_seqs:
        reason = f"a row: all {config.max_num_seqs} of --max-num-seqs are taken"
    elif gauges["blocks_total"] and gauges["blocks_free"] < needed:
        free, total = gauges["blocks_free"], gauges["blocks_total"]
        reason = f"KV blocks: up to {needed} are needed, {free} of {total} are free"
    elif scene.is_as_launched(facts):
        reason = f"a step with room: one computes {config.max_num_batched_tokens} tokens at most"
    else:
        reason = "a step with room"
    if place is None or place == 1:
        return reason
    return f"{place - 1} before it, the first of which waits for {reason}"


def _troubles(scene: Scene, facts: Facts, *kinds: str) -> list[str]:
    """Of the engine that the request belongs to."""
    if scene.is_elsewhere(facts) and not scene.scheduler(facts).gauges["blocks_total"]:
        return [f"its engine at {scene.address(facts)}, which does not compute yet: {_actor(scene.scheduler(facts))}"]
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
