"""Child specifications as data, in the manner of Erlang/OTP: what the supervisor does with each kind of actor."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Restart(Enum):
    """When an actor that has ended is started again."""

    PERMANENT = auto()  # always
    TRANSIENT = auto()  # unless it ended by itself with status 0
    TEMPORARY = auto()  # never


WITHIN_S = 60.0  # in which one actor may be started again --max-restarts times; then the failure goes up


class Strategy(Enum):
    """Who else is started again with it."""

    ONE_FOR_ONE = auto()
    ALL_FOR_ONE = auto()  # all of its kind: they share what died with it
    REST_FOR_ONE = auto()  # all that were started after it


@dataclass(frozen=True)
class ChildSpec:
    """How one kind of actor is kept alive. Times are in seconds."""

    restart: Restart = Restart.PERMANENT
    strategy: Strategy = Strategy.ONE_FOR_ONE
    start_s: float = 60.0  # from its birth until it is ready
    warm: bool = True  # born from the template process, which has done the imports
    computes: bool = False  # its loop turns once a step, for which --step-timeout holds and not --hang-timeout


SPECS = {
    "worker": ChildSpec(strategy=Strategy.ALL_FOR_ONE, start_s=3600.0, warm=False, computes=True),  # it may download
    "scheduler": ChildSpec(),
    "detokenizer": ChildSpec(),
    "renderer": ChildSpec(),
    "frontend": ChildSpec(),
}
