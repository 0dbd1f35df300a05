"""Who is replaced by a rolling restart, in which order, and who at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from ...protocol.kinds import KINDS, restart_order

if TYPE_CHECKING:
    from ..processes.child import Child

ALL = "all"


def choose(children: Sequence[Child], what: str) -> list[Child]:
    """Those of this kind, or name; with one of a group all of it, since they have the same options."""
    named = [child for child in children if what in (ALL, child.spec.kind, child.name)]
    groups = {_group(child) for child in named if child.traits.group}
    return [child for child in children if child in named or _group(child) in groups]


def choices(children: Sequence[Child]) -> list[str]:
    """What `choose` finds: the kinds that are there, each actor, and all."""
    kinds = {child.spec.kind for child in children}
    return [*dict.fromkeys([*(kind for kind in KINDS if kind in kinds), *(child.name for child in children), ALL])]


def in_batches(chosen: Sequence[Child]) -> list[list[Child]]:
    """Who is replaced at once: each alone, but for those of a group."""
    batches: list[list[Child]] = []
    for kind in restart_order():
        own = [child for child in chosen if child.traits is kind]
        groups = [[child for child in own if _group(child) == group] for group in sorted(set(map(_group, own)))]
        batches += groups if kind.group else [[child] for child in own]
    return batches


def _group(child: Child) -> tuple[str, int]:
    """Whom it is replaced with, where its kind is replaced as groups: the same model's."""
    return child.spec.kind, child.spec.engine


def to_be_tried(batches: Sequence[Sequence[Child]]) -> list[Child]:
    """One of each kind whose code the first template has not imported as a whole; any, if there is none, since the
    memory's layout counts.
    """
    first = {
        child.spec.kind: child
        for batch in batches
        for child in batch
        if child.traits.late_imports or not child.traits.prefork
    }
    return list(first.values()) or [batches[-1][0]]


def names_of(batch: Iterable[Child]) -> str:
    """For a line of the log."""
    return ", ".join(child.name for child in batch)
