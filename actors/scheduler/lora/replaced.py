"""Loads of adapters whose files are others by now than those that were read first.

A load is of the bytes that were read first: a stamp of the files stands in the registry. When a worker that has to read
them again, as a successor does, finds others, a new load of the name begins. Sequences that have not run go over to it:
that stands in their slots (table.set_load, the owner's word), for whoever has them next; the prompt's hashes are of the
old one, and are made anew. Those that have run would go on with the rest of another text, and are ended. Until the new
load is there both wait.

An engine of a server elsewhere begins none: that server means the load that it has asked for, which others may have in
memory still. It is unloaded, and all who have it are turned away (steward/actor.py) and go where it is.

Nothing else is written down: a successor of the scheduler asks the worker for the load of those that have not gone
over, and hears the same.
"""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Protocol

from actorserve.shm.adapters.registry import AdapterRegistryWriter, AdapterState, RegisteredAdapter
from actorserve.shm.layout import LOW32
from actorserve.shm.table.table import RequestTable

from ..sequence import Sequence


class HasAdapter(Protocol):
    """A sequence, here or in a link."""

    @property
    def adapter(self) -> int:
        """The id of its load; 0: none."""


class ReplacedLoads(Container[int]):
    """Of one scheduler's life."""

    def __init__(self, registry: AdapterRegistryWriter, table: RequestTable) -> None:
        self._registry, self._table = registry, table
        self._loads: set[int] = set()

    def __contains__(self, adapter: object) -> bool:
        """Does a new load take the place of this one, which is not there yet?"""
        return adapter in self._loads

    def add(self, one: RegisteredAdapter) -> bool:
        """A worker has found other files; is a new load to begin?"""
        self._loads.add(one.id)
        return self._newer(one) is None

    def _newer(self, one: RegisteredAdapter) -> RegisteredAdapter | None:
        found = [other for other in self._registry.all() if other.name == one.name and other.id > one.id]
        return max((other for other in found if other.state is not AdapterState.UNLOADING), default=None)

    def turn(self, sequences: Mapping[int, HasAdapter]) -> list[int]:
        """Who waits for one of them goes on with the new load; those of which nobody else may wait any more."""
        over = []
        for adapter in list(self._loads):
            one = self._registry.by_id(adapter)
            newer = None if one is None else self._newer(one)
            if newer is not None and newer.state is AdapterState.LOADING:
                continue
            if newer is None and one is not None and not self._registry.keeps:
                continue  # the first engine begins it
            self._loads.discard(adapter)
            over.append(adapter)
            if newer is not None and newer.id <= LOW32:  # of so many loads a slot can tell; else they end, too
                self._go_over(sequences, adapter, newer.id)
        return over

    def _go_over(self, sequences: Mapping[int, HasAdapter], old: int, new: int) -> None:
        for sequence in sequences.values():
            assert isinstance(sequence, Sequence), "an engine elsewhere finds no other files: digests are compared"
            if sequence.adapter == old and sequence.row is None and not sequence.has_run:
                self._table.set_load(sequence.ref, new)
                sequence.adapter, sequence.hashes = new, []
