"""The records that a topology is made of: of one actor, of one lane, of where clients' keys lie."""

from __future__ import annotations

import msgspec

from ..options.config import Config
from .actor_kind import ActorKind
from .kinds import kind_of
from .served import ServedModel


class ActorSpec(msgspec.Struct, frozen=True):
    """One actor: its name in `ps`, its kind's, and its place on the board."""

    name: str
    kind: str
    index: int  # among those of its kind, of its engine if there are such
    position: int
    engine: int = 0  # whose it is; of those that belong to none it says nothing
    model: int = 0  # the same of the server's models
    own_module: str = ""  # what runs it, where that is another one than its kind's

    @property
    def traits(self) -> ActorKind:
        """What holds for all of its kind."""
        return kind_of(self.kind)

    @property
    def module(self) -> str:
        """Whose `main(context)` is the process."""
        return self.own_module or self.traits.module


class Lane(msgspec.Struct, frozen=True):
    """One ring at `offset` of the segment, from an actor to its readers; `target` is what it is posted to."""

    source: str
    target: str  # an actor's name, or the kind of all of its readers
    readers: tuple[str, ...]
    offset: int
    capacity: int


class AccountPlaces(msgspec.Struct, frozen=True):
    """Where in the segment clients' keys and what they use lie."""

    book: int
    ledger: int


def actor_name(kind: ActorKind, index: int, served: ServedModel) -> str:
    """The kind's own if there can be no other; a group of one is not told apart, either. Of several models the others
    than the first have theirs behind a +; engines have their number behind an @ instead.
    """
    alone = not kind.count or (kind.group and getattr(served.config, kind.count) == 1)
    name = kind.name if alone else f"{kind.name}-{_place(index, served.config) if kind.group else index}"
    return name + served.label if kind.by_model else name


def _place(index: int, config: Config) -> str:
    """A worker's in its group: its number, or its stage with what it is there, such as pp1-tp0."""
    stage, rank = divmod(index, config.tensor_parallel_size)
    if config.pipeline_parallel_size == 1:
        return str(index)
    return f"pp{stage}" if config.tensor_parallel_size == 1 else f"pp{stage}-tp{rank}"
