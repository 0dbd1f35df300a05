"""Which stage a request is in, and how long each took, by what has been published of it."""

from __future__ import annotations

import msgspec

from actorserve.shm.table.stamps import Stamp

from ...protocol.messages import FAILURES, Finish
from ..requests import Facts
from .scene import SECOND, Scene

PICTURES = "processing its pictures"
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


class Stage(msgspec.Struct, frozen=True):
    """A part of a request's way."""

    name: str
    seconds: float
    over: bool  # False: it is still there


def find_where(scene: Scene, facts: Facts) -> str:
    """The stage, by what has been published; stamps alone may be of what a death undid."""
    at = facts.life.at
    if facts.finish:
        return "ended" if facts.finish in UNTOLD or Stamp.END_TOLD in at else "telling its end"
    if facts.prompt is None:
        return _where_rendered(scene, facts)
    if Stamp.ADMITTED not in at:
        return "queued to the scheduler"
    if not scene.has_row(facts):
        return "waiting for its first step" if Stamp.SCHEDULED not in at else "waiting to go on"
    if facts.generated:
        return "decode" if facts.computed >= facts.prompt or scene.is_elsewhere(facts) else "computing again"
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


def find_stages(facts: Facts, now_ns: int, ended: bool) -> list[Stage]:
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
