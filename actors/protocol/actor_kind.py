"""What all actors of one kind have in common, as one record; which kinds there are: kinds.py."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Literal

from ..telemetry.histograms import HistogramSpec
from ..telemetry.metrics import Metric
from ..telemetry.startup import StartPhase


class NoGauge(IntEnum):
    """Of a kind that has none."""


def _no_histograms(longest: int) -> list[HistogramSpec]:
    return []


@dataclass(frozen=True)
class Sends:
    """There is a lane from each actor of a kind to those of another."""

    to: str
    bodies: bool = False  # a record may be as long as a request's body, or as its tokens
    sounds: bool = False  # or as a sound that is to be written down, to those of a model that does
    steps: bool = False  # or as a step, or the answer to one
    small: bool = False  # the records are few and short


@dataclass(frozen=True, kw_only=True)
class ActorKind:
    """What all actors of one kind have in common. Times are in seconds."""

    name: str
    module: str  # whose `main(context)` is the process
    actor: str = ""  # "module:callable", which makes its Actor of a Context, where all are in one process
    # "module:function" of a Config: what it imports only once it runs, for whoever tries new code
    late_imports: str = ""
    # how many, and what they say to each other
    count: str = ""  # the option that says how many there are; one if there is none
    only_with: str = ""  # the field of ModelInfo without which there are none
    only_if: str = ""  # the field of Config without which there are none
    of_stewards: bool = False  # there are some as well on a machine that computes for servers elsewhere
    group: bool = False  # all act as one: they share the lanes that lead here, die together and are replaced together
    by_engine: bool = False  # each engine has its own, and lanes between such kinds stay within one; those of a kind to
    # itself lead to the other engines
    by_model: bool = False  # each model of the server has its own, and lanes to engines lead to those of that model
    receives: Any = Any  # the union of the messages that it takes
    sends: tuple[Sends, ...] = ()
    # it is handed clients' connections, and at the end finishes their requests, or tells them
    has_clients: bool = False
    is_client: bool = False  # it asks the server itself, by connections that the supervisor makes
    # how it is kept alive
    prefork: bool = True  # forked from a template, which has done the imports
    # "module:function": what it imports only once it runs is imported by a template of its own, before it forks; of a
    # kind that computes the function is given modules that the server's models need
    early_imports: str = ""
    start_s: float = 60.0  # from its start until it is ready
    computes: bool = False  # its loop turns once a step, for which --step-timeout holds and not --hang-timeout
    # how it is replaced
    restart_order: int = 0  # in a restart of all: those with lower numbers first
    restart_help: str = ""  # what it means for requests, for `actorserve restart --help`
    changeable: frozenset[str] = frozenset()  # options that its successors may have otherwise
    # what is known of it
    gauges: type[IntEnum] = NoGauge  # its general words on the board
    kept: frozenset[int] = frozenset()  # those that count: a successor goes on from them
    metrics: tuple[Metric, ...] = ()  # those that /metrics shows as they are, the sum over all of its kind
    histograms: Callable[[int], list[HistogramSpec]] = _no_histograms  # by the model's longest sequence
    phases: type[IntEnum] = StartPhase  # of its start; SPAWN, IMPORTS and SET_UP are in all of them
    # what depends on it
    needed: bool = True  # the server is ready only while it is
    rests: bool = False  # one that has died too often is left down for a while, and the server goes on without it
    requests: Literal["all", "own", "none"] = "none"  # any request may pass it; those of its slots; none
