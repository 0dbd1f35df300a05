"""LoRA adapters that come and go, as it crosses rings. What changes one may come twice."""

from __future__ import annotations

from ..wire import Message


class LoadAdapter(Message, frozen=True, tag=60):
    """Frontend → scheduler: requests are to have this adapter by its name. Answered by AdapterChanged with the call
    where it is refused or there already, else with the name once the worker has read it. It may be done twice.
    """

    call: int
    name: str
    path: str
    in_place: bool = False  # of one of this name that is there


class UnloadAdapter(Message, frozen=True, tag=61):
    """Frontend → scheduler: no request is to have it any more. Answered likewise, once none has."""

    call: int
    name: str


class AdapterRead(Message, frozen=True, tag=62):
    """Worker → scheduler: it has this adapter in memory, or cannot have it."""

    incarnation: int
    rank: int  # of the member of a group
    adapter: int
    problem: str = ""
    stamp: int = 0  # of the files that it has read; 0: it had them
    changed: bool = False  # it has read nothing, since the files are others than those of the load


class ReadAdapter(Message, frozen=True, tag=63):
    """Scheduler → worker: have this one in memory; answered by AdapterRead. Steps go on meanwhile."""

    adapter: int
    path: str
    stamp: int = 0  # of the files of this load; 0: they are read for the first time


class DropAdapter(Message, frozen=True, tag=64):
    """Scheduler → worker: no row has it, and none will before it is read again."""

    adapter: int


class AdapterChanged(Message, frozen=True, tag=65):
    """Scheduler → frontend: what has come of a LoadAdapter or UnloadAdapter. Without a call all are told who wait for
    something of this name.
    """

    call: int
    name: str
    status: int = 200
    problem: str = ""


class AdapterReplaced(Message, frozen=True, tag=66):
    """Scheduler of another engine → that of the first: the files of this load are others by now. It may come twice."""

    adapter: int
