"""The tier in a folder: threads read and write its files, so that no file system, however slow, stops the actor.

All errors of files end here: what cannot be read is not there, what cannot be written is not kept. A folder that takes
too long is left alone until it answers; one that is full or read-only is tried again after a while. What is done is
told by a queue and a wake-up; results may come long after anybody wants them.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

from ..telemetry.gauges import PorterGauge
from .carrier import Kind, Reading
from .files import BadFile, place_of, read_block, write_block
from .recent_keys import RecentKeys
from .sweep import forgotten_name, measure, sweep

READERS = 4
STALLED_S = 1.0  # a read that takes so long ends hopes of others
PENDING_BYTES = 64 << 20  # of blocks that wait to be written
WRITES_AGAIN_S = 5.0  # after an error
SWEEP_S = 60.0  # between two looks at all files
OVER = 1.05  # of the limit at which no more is written until it has been swept
TOUCHED_S = 60.0  # a file that was used is marked so at most so often


class Counts:
    """Since the actor's start; written by threads, read by it."""

    def __init__(self) -> None:
        self.written = self.errors = self.bad = self.evicted = self.bytes = 0


class FolderTier:
    """One folder, for one porter."""

    hits = PorterGauge.HITS_FOLDER

    def __init__(self, root: Path, limit: int, wake: Callable[[], None], log: logging.Logger) -> None:
        self.root, self.limit = root, limit
        self.counts = Counts()
        self.forgetting = False
        self._wake, self._log = wake, log
        self._reads: queue.SimpleQueue[Reading] = queue.SimpleQueue()
        self._writes: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._busy: dict[int, float] = {}  # readers at work, since when
        self._waiting = 0  # readings that no reader has begun
        self._pending = 0  # bytes
        self._saved = RecentKeys()
        self._generation = 0  # of what is to be kept
        self._again = 0.0  # when writing is tried again
        self._troubled = False  # some files cannot be removed
        self._lock = threading.Lock()
        self._due = threading.Event()  # a sweep
        self._writes.put(self._try_to_write)
        for index in range(READERS):
            threading.Thread(target=self._read_on, args=(index,), daemon=True).start()
        threading.Thread(target=self._write_on, daemon=True).start()
        threading.Thread(target=self._sweep_on, daemon=True).start()

    # --- reading -------------------------------------------------------------------------------------------------

    @property
    def answers(self) -> bool:
        """Is it worth asking now?"""
        now = time.monotonic()
        stalled = sum(now - since > STALLED_S for since in list(self._busy.values()))
        return not self.forgetting and stalled < READERS and self._waiting <= 8 * READERS

    def read(self, kind: Kind, keys: list[bytes]) -> Reading:
        """Begin; the actor is woken as blocks come."""
        reading = Reading(kind, keys, [])
        with self._lock:
            self._waiting += 1
        self._reads.put(reading)
        return reading

    def _read_on(self, index: int) -> None:
        while True:
            reading = self._reads.get()
            with self._lock:
                self._waiting -= 1
            self._busy[index] = time.monotonic()
            try:
                self._read_chain(reading, index)
            finally:
                del self._busy[index]
                reading.done = True
                self._wake()

    def _read_chain(self, reading: Reading, index: int) -> None:
        for key in reading.keys:
            if not reading.wanted or self.forgetting:
                return
            self._busy[index] = time.monotonic()
            data = self._read_one(reading.kind, key)
            if data is None:
                return
            reading.blocks.append(data)
            self._wake()

    def _read_one(self, kind: Kind, key: bytes) -> bytes | None:
        place = place_of(self.root, kind.fingerprint, key)
        try:
            data = read_block(self.root, kind.fingerprint, key, kind.size)
            if data is None:
                self._saved.discard(kind, [key])
            elif time.time() - place.stat().st_mtime > TOUCHED_S:
                with contextlib.suppress(OSError):  # of one that may only be read
                    os.utime(place)
            return data
        except BadFile as error:
            self.counts.bad += 1
            self._log.warning("%s is left alone, and computed again: %s", place, error)
            self._saved.discard(kind, [key])
            with contextlib.suppress(OSError):
                place.unlink()
        except OSError as error:
            self.counts.errors += 1
            self._log.debug("%s cannot be read: %s", place, error)
        return None

    # --- writing -------------------------------------------------------------------------------------------------

    def has(self, kind: Kind, key: bytes) -> bool:
        """Was it written or read lately? False says nothing."""
        return (kind, key) in self._saved

    @property
    def takes(self) -> bool:
        """Can more be written now?"""
        full = self._sweep_if_full()
        return not full and self._pending < PENDING_BYTES and time.monotonic() >= self._again

    def write(self, kind: Kind, key: bytes, data: bytes) -> None:
        """It is kept, if that can be."""
        with self._lock:
            self._pending += len(data)
            generation = self._generation
        self._writes.put(lambda: self._write_one(kind, key, data, generation))

    def forget(self, kind: Kind, done: Callable[[], None]) -> None:
        """All blocks of this kind; nothing is read until that is so, then `done` is called, by a thread."""
        with self._lock:
            self._generation += 1
            self.forgetting = True
            self._saved.clear()
        self._writes.put(lambda: self._forget_now(kind, done))

    def _write_on(self) -> None:
        while True:
            self._writes.get()()

    def _try_to_write(self) -> None:
        """At the start, so that nobody learns only at the first block that none is kept."""
        try:
            self.root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=self.root):
                pass
        except OSError as error:
            self._failed(error)

    def _failed(self, error: OSError) -> None:
        """Nothing is written for a while."""
        if not self.counts.errors:
            self._log.warning("KV blocks cannot be written to %s, and are not kept there: %s", self.root, error)
        self.counts.errors += 1
        self._again = time.monotonic() + WRITES_AGAIN_S

    def _write_one(self, kind: Kind, key: bytes, data: bytes, generation: int) -> None:
        try:
            if generation == self._generation and time.monotonic() >= self._again:
                place = place_of(self.root, kind.fingerprint, key)
                if not place.exists():
                    self.counts.bytes += write_block(self.root, kind.fingerprint, key, data)
                    self.counts.written += 1
                    self._sweep_if_full()  # perhaps nobody asks again whether it takes more
                self._saved.add(kind, key)
        except OSError as error:
            self._failed(error)
            self._due.set()
        finally:
            with self._lock:
                self._pending -= len(data)

    def _forget_now(self, kind: Kind, done: Callable[[], None]) -> None:
        """Under another name it is forgotten at once; what of that is not removed now, the next look removes."""
        place = self.root / kind.fingerprint.hex()
        try:
            with contextlib.suppress(FileNotFoundError):
                place.rename(forgotten_name(place))
        except OSError as error:
            self._log.error("%s cannot be forgotten, and is not read any more: %s", place, error)
            return
        self.forgetting = False
        done()
        self._due.set()
        self._wake()

    # --- its size ------------------------------------------------------------------------------------------------

    def _sweep_if_full(self) -> bool:
        full = self.counts.bytes > self.limit * OVER
        if full:
            self._due.set()
        return full

    def _tell_trouble(self, trouble: OSError | None) -> None:
        if trouble is not None and not self._troubled:
            self._log.warning("%s may outgrow its limit: %s", self.root, trouble)
        self._troubled = trouble is not None

    def _sweep_on(self) -> None:
        while True:
            try:
                self.root.mkdir(parents=True, exist_ok=True)
                swept = sweep(self.root, self.limit)
                if swept is None:
                    self.counts.bytes = measure(self.root)
                else:
                    self.counts.bytes = swept.bytes
                    self.counts.evicted += swept.removed
                    if swept.removed:
                        with self._lock:
                            self._saved.clear()
                    self._tell_trouble(swept.trouble)
            except OSError as error:
                self._log.debug("%s cannot be looked through: %s", self.root, error)
            self._due.wait(SWEEP_S)
            self._due.clear()
            time.sleep(0.1)  # not a signal: what comes in a burst is swept once
