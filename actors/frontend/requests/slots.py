"""The frontend's slots of the request table: who has which, in which phase, and when one is free again.

    phase       came by                     ends with
    FREE        start, or an end below      open()
    RENDERING   Render was posted           Rendered → RUNNING;  Failed → FREE (the scheduler never heard of it)
    RUNNING     Rendered                    Delta with last → FREE (nobody upstream touches the slot again)
    ORPHAN      a predecessor left it       as below → FREE; read() → RUNNING
A slot whose answer is kept for a repetition of its request (retained.py) stays where it is until it is kept no more.

A client that goes away sets the cancel word. In RENDERING nothing more is said: the renderer answers Failed, or it was
too late and Rendered comes, and then Cancel is posted. In RUNNING Cancel is posted at once. The slot is freed as above.

Orphans are free at once where words of the slot's present use say that all have let go of it (has_ended):
- the end is told (this frontend's word, by close()) of one without a prompt: the renderer's Failed came;
- there is a finish word (the scheduler's), and the text (the detokenizer's) is at the end of the log, or at a stop
  string: it was admitted, so a renderer to whom its Render is delivered again finds its prompt and writes nothing.
The predecessor's Render of another may still lie in a renderer's lane, so none is free before every renderer has
answered Sync, which it does in order. After that nobody upstream touches a slot that
- has no prompt: it was never admitted, and no renderer knows of it any more;
- has a finish word: the scheduler has let go of it, and a detokenizer only reads what carries the old generation.
Every other one was admitted: the scheduler ends it by its cancel word, and its end comes round as Delta.last.
A death between two stores leaves the less, and so a slot that waits: open_slot() stores the generation last, until when
the slot is what it was; close() tells the end before it is in the list of free ones; text is stored behind the delta.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import TYPE_CHECKING

from actorserve.http.generation.job import Job
from actorserve.shm.table.stamps import Stamp, Stamps
from actorserve.shm.table.table import RequestTable, slot_of
from actorserve.shm.table.vectors import Vectors

if TYPE_CHECKING:
    from ..accounts.quotas import Quotas


class SlotPhase(Enum):
    """Where a slot in use is."""

    RENDERING = auto()
    RUNNING = auto()
    ORPHAN = auto()


@dataclass
class SlotUse:
    """One use of a slot; `jobs` are its readers: none once its client has gone, several if it was asked for again."""

    ref: int
    phase: SlotPhase
    jobs: list[Job]
    index: int  # of the choice
    renderer: str
    begun: bool = False  # some of its text was handed on, by this frontend
    late: set[Job] = field(default_factory=set)  # readers that came behind its beginning, until that is said again


class Slots:
    """All slots of one frontend."""

    def __init__(
        self, table: RequestTable, first: int, count: int, vectors: Sequence[Vectors] = (), quotas: Quotas | None = None
    ) -> None:
        """`vectors`: what a model that pools has made for them, and what one hears, which goes with their uses."""
        self._table = table
        self._quotas = quotas
        self._vectors = vectors
        self._stamps = Stamps(table)
        self._uses: dict[int, SlotUse] = {}
        for ref in table.current_refs(first, count):
            self._uses[ref] = SlotUse(ref, SlotPhase.ORPHAN, [], 0, "")
        taken = {slot_of(ref) for ref in self._uses}
        self._free = deque(slot for slot in range(first, first + count) if slot not in taken)

    @property
    def free(self) -> int:
        """Slots that can be opened."""
        return len(self._free)

    def open(self, params: bytes, arrival_ns: int, job: Job, index: int, renderer: str) -> int:
        """A free slot for a choice; its ref."""
        ref = self._table.open_slot(self._free[0], params, arrival_ns, job.seed, job.model)
        self._free.popleft()
        self._uses[ref] = SlotUse(ref, SlotPhase.RENDERING, [job], index, renderer)
        return ref

    def is_orphan(self, ref: int) -> bool:
        """Is it a predecessor's slot that nobody has cancelled?"""
        use = self._uses.get(ref)
        return use is not None and use.phase is SlotPhase.ORPHAN and not self._table.is_cancelled(ref)

    def read(self, ref: int, job: Job, index: int) -> None:
        """A slot in use is read for this choice, too; a predecessor's goes on for it. Its text is said again."""
        use = self._uses[ref]
        if use.phase is SlotPhase.ORPHAN:
            use = self._uses[ref] = SlotUse(ref, SlotPhase.RUNNING, [], index, "")
        use.jobs.append(job)
        use.late.add(job)

    def use(self, ref: int) -> SlotUse | None:
        """The present use that this ref names, if it is one."""
        return self._uses.get(ref)

    def close(self, ref: int) -> None:
        """Nobody will touch the slot again."""
        self.end_heard(ref)  # of one without a prompt: a successor could not tell it from one that is to be rendered
        for vectors in self._vectors:
            vectors.give_back(ref)
        if self._quotas is not None:
            self._quotas.closed(ref, self._uses[ref].phase is SlotPhase.ORPHAN)
        del self._uses[ref]
        self._free.append(slot_of(ref))

    def end_heard(self, ref: int) -> None:
        """Whoever waited for its end has been told of it, or there is nobody."""
        self._stamps.set_first(ref, Stamp.END_TOLD, time.monotonic_ns())

    def orphans(self) -> list[int]:
        """What a predecessor left."""
        return [use.ref for use in self._uses.values() if use.phase is SlotPhase.ORPHAN]

    def has_ended(self, ref: int) -> bool:
        """Has everybody let go of this slot? False also where that cannot be said."""
        table = self._table
        if table.prompt_length(ref) is None:
            return bool(self._stamps.get(ref, Stamp.END_TOLD))
        return bool(table.finish(ref)) and (bool(table.stop(ref)) or table.text(ref) == table.generated(ref))

    def close_ended(self, is_wanted: Callable[[int], bool]) -> None:
        """Free the orphans of which everybody has let go, but not those that are wanted."""
        for ref in self.orphans():
            if self.has_ended(ref) and not is_wanted(ref):
                self.close(ref)

    def close_orphans(self, is_wanted: Callable[[int], bool]) -> None:
        """All renderers are synced: free the orphans whose end will not come round, but not those that are wanted."""
        for ref in self.orphans():
            if is_wanted(ref):
                continue
            if self._table.finish(ref) or self._table.prompt_length(ref) is None:
                self.close(ref)
