"""Which weights an engine's workers load, and why they could not: a memory file, with two records for each engine.

Layout of a record: generation (a word), then two places for the path of a folder, of which that of the generation
counts. An engine's scheduler alone writes its record: the path of the next generation first, then the generation, so
that a death between the two leaves the weights that were there. Generation 0, and an empty path, are the served model.
The second record is like it, with a text in the place of a path.
"""

from __future__ import annotations

import os
from struct import Struct

WORD = Struct("<q")
PATH_BYTES = 4088
PLACE_BYTES = WORD.size + PATH_BYTES
RECORD_BYTES = 8192 + WORD.size
RECORDS = 2


class WeightsRecord:
    """That of one engine; only its scheduler calls `store`."""

    def __init__(self, fd: int, engine: int, number: int = 0) -> None:
        """`number`: of the engine's records."""
        self._fd, self._start = fd, (engine * RECORDS + number) * RECORD_BYTES

    @staticmethod
    def create(engines: int) -> int:
        """The descriptor of a file for so many engines, all of which have the served model's weights."""
        fd = os.memfd_create("actorserve-weights", os.MFD_CLOEXEC)
        os.ftruncate(fd, engines * RECORDS * RECORD_BYTES)
        return fd

    @property
    def generation(self) -> int:
        """How often that was changed."""
        return int(WORD.unpack(os.pread(self._fd, WORD.size, self._start))[0])

    def read(self) -> tuple[int, str]:
        """(generation, folder)."""
        generation = self.generation
        return generation, self._path(generation)

    def before(self) -> str:
        """The folder of the generation before this one."""
        return self._path(max(0, self.generation - 1))

    def store(self, folder: str) -> int:
        """The next generation, which is returned; ValueError if the path is too long."""
        path = os.fsencode(folder)
        if len(path) > PATH_BYTES:
            raise ValueError(f"a path of {len(path)} bytes; at most {PATH_BYTES} are taken")
        generation = self.generation + 1
        os.pwrite(self._fd, WORD.pack(len(path)) + path, self._place(generation))
        os.pwrite(self._fd, WORD.pack(generation), self._start)
        return generation

    def _place(self, generation: int) -> int:
        return self._start + WORD.size + generation % 2 * PLACE_BYTES

    def _path(self, generation: int) -> str:
        found = os.pread(self._fd, PLACE_BYTES, self._place(generation))
        return os.fsdecode(found[WORD.size : WORD.size + WORD.unpack_from(found)[0]])


class LoadProblem:
    """Why an engine's model could not be loaded when it was asked for last; nothing where it could be."""

    def __init__(self, fd: int, engine: int) -> None:
        self._record = WeightsRecord(fd, engine, 1)

    def read(self) -> str:
        return self._record.read()[1]

    def store(self, text: str) -> None:
        """The scheduler's."""
        if text != self.read():
            self._record.store(text.encode(errors="replace")[:PATH_BYTES].decode(errors="ignore"))
