"""Others' code as a tier (connector.py says what it has to be): two threads call it, so that the actor never does.

All of its errors end here, and are told. A call that hangs is left alone, and nothing more is asked for until it is
over: fetches are answered without it, and blocks that were to be stored are not. If it holds all of the process up, the
porter is replaced as any actor that stands still. Nothing of it is shared with anyone: a death at any line leaves at
most a block in its store that is not whole, which the checksum tells.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections.abc import Callable

from ..options.kv_offload import OPTION, PLUGINS, plugin_parts
from ..options.plugins import load_plugin
from ..telemetry.gauges import PorterGauge
from .carrier import Kind, Reading
from .connector import KVConnector
from .files import BadFile, pack_block, unpack_block
from .recent_keys import RecentKeys

BUDGET_S = 1.0  # of a call; one that takes longer hangs
PAUSE_S = 5.0  # behind an exception
MOST_WAITING = 32  # readings
PENDING_BYTES = 64 << 20  # of blocks that wait to be stored


class Caller:
    """One thread that calls it; `call` may be asked from any."""

    def __init__(self, what: str) -> None:
        self.what = what
        self.since: float | None = None  # of the call that runs
        self.told = False  # that it hangs
        self.jobs: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()

    @property
    def hangs(self) -> bool:
        since = self.since
        return since is not None and time.monotonic() - since > BUDGET_S


class PluginTier:
    """One connector, for one porter."""

    hits = PorterGauge.HITS_PLUGIN

    def __init__(self, text: str, wake: Callable[[], None], log: logging.Logger) -> None:
        """`text`: behind plugin: in the option."""
        self.errors = 0
        self._text, self._wake, self._log = text, wake, log
        self._connector: KVConnector | None = None
        self._reads, self._writes = Caller("lookup or load"), Caller("store or forget")
        self._pending = 0  # bytes
        self._saved = RecentKeys()
        self._generation = 0  # of what is to be kept
        self._forgetting = False
        self._again = 0.0
        self._lock = threading.Lock()
        self._reads.jobs.put(self._make)
        for caller in (self._reads, self._writes):
            threading.Thread(target=self._call_on, args=(caller,), daemon=True).start()

    def look(self) -> None:
        """Tell of a call that hangs, once."""
        for caller in (self._reads, self._writes):
            if caller.hangs and not caller.told:
                caller.told = True
                self.errors += 1
                text = "%s: plugin %s: %s has taken more than %g s; it is not asked until that is over"
                self._log.warning(text, OPTION, self._text, caller.what, BUDGET_S)

    # --- what a carrier does -------------------------------------------------------------------------------------

    @property
    def answers(self) -> bool:
        return self._is_open(self._reads) and not self._forgetting and self._reads.jobs.qsize() < MOST_WAITING

    @property
    def takes(self) -> bool:
        return self._is_open(self._writes) and self._pending < PENDING_BYTES

    def _is_open(self, caller: Caller) -> bool:
        return self._connector is not None and not caller.hangs and time.monotonic() >= self._again

    def read(self, kind: Kind, keys: list[bytes]) -> Reading:
        reading = Reading(kind, keys, [])
        self._reads.jobs.put(lambda: self._read(reading))
        return reading

    def has(self, kind: Kind, key: bytes) -> bool:
        return (kind, key) in self._saved

    def write(self, kind: Kind, key: bytes, data: bytes) -> None:
        with self._lock:
            self._pending += len(data)
            generation = self._generation
        self._writes.jobs.put(lambda: self._store(kind, key, data, generation))

    def forget(self, kind: Kind, done: Callable[[], None]) -> None:
        with self._lock:
            self._generation += 1
            self._forgetting = True
            self._saved.clear()
        self._writes.jobs.put(lambda: self._forget(kind, done))

    # --- threads -------------------------------------------------------------------------------------------------

    def _call_on(self, caller: Caller) -> None:
        while True:
            job = caller.jobs.get()
            caller.since = time.monotonic()
            try:
                job()
            except (Exception, SystemExit) as error:
                self._failed(caller, error)
            finally:
                caller.since, caller.told = None, False
                self._wake()

    def _failed(self, caller: Caller, error: BaseException) -> None:
        self.errors += 1
        self._again = time.monotonic() + PAUSE_S
        what, name = caller.what if self._connector is not None else "it", type(error).__name__
        self._log.warning(
            "%s: plugin %s: %s has failed, and is a miss: %s: %s", OPTION, self._text, what, name, error,
            exc_info=not isinstance(error, BadFile),
        )  # fmt: skip

    def _make(self) -> None:
        name, argument = plugin_parts(self._text)
        made = load_plugin(f"{OPTION}: plugin", name, PLUGINS)(argument)
        if missing := [one for one in ("lookup", "load", "store", "forget") if not callable(getattr(made, one, None))]:
            raise TypeError(f"it has no {missing[0]}, as actorserve.KVConnector has")
        self._connector = made

    def _read(self, reading: Reading) -> None:
        try:
            self._load(reading)
        finally:
            reading.done = True

    def _load(self, reading: Reading) -> None:
        connector, kind = self._connector, reading.kind
        if connector is None or not reading.wanted:
            return
        count = int(connector.lookup(kind.fingerprint, list(reading.keys)))
        keys = reading.keys[: max(0, count)]
        self._saved.discard(kind, reading.keys[len(keys) :])  # of what it has given up it may be given again
        if not keys:
            return
        for key, data in zip(keys, connector.load(kind.fingerprint, list(keys)), strict=False):
            if not reading.wanted or self._forgetting:
                return
            try:
                reading.blocks.append(unpack_block(kind.fingerprint, key, kind.size, data))
            except BadFile:
                self._saved.discard(kind, [key])  # it is given this one again, once it has been computed
                raise
            self._saved.add(kind, key)
            self._wake()

    def _store(self, kind: Kind, key: bytes, data: bytes, generation: int) -> None:
        try:
            if self._connector is not None and generation == self._generation:
                self._connector.store(kind.fingerprint, key, pack_block(kind.fingerprint, key, data))
                self._saved.add(kind, key)
        finally:
            with self._lock:
                self._pending -= len(data)

    def _forget(self, kind: Kind, done: Callable[[], None]) -> None:
        """If it cannot, nothing is read any more: what is found might be what was to be forgotten."""
        if self._connector is None:
            raise RuntimeError("it is not there, and what it keeps cannot be forgotten; nothing of it is read")
        self._connector.forget(kind.fingerprint)
        self._forgetting = False
        done()
