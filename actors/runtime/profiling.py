"""An actor's part of a profile: it looks in each turn whether one is wanted (shm/kv_map/profile.py), and writes what
its sampler, and the profiler of its device, have seen into a file of --profile-dir, whole or not at all.

A part is `ACTOR.LIFE.PROFILE.part`, JSON of a Part. An actor that is killed leaves none; its successor begins another.
Whoever stops the profile joins them (frontend/administration/profile.py).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Protocol

import msgspec

from actorserve.shm.kv_map.profile import ProfileState, ProfileWords

from .sampler import Entry, StackSampler
from .whole_file import write_whole

log = logging.getLogger("profile")
PART = ".part"
TURN_S = 5.0  # that an actor gets until its next turn; a hung one is not waited for


class Part(msgspec.Struct):
    """What one life of one actor has seen."""

    actor: str
    incarnation: int
    began: int  # CLOCK_MONOTONIC, ns
    cut: bool  # it was more than is kept
    entries: list[dict[str, Any]]


class DeviceProfiler(Protocol):
    """What sees more than Python's stacks, from the actor's own thread."""

    def stop(self) -> list[Entry]:
        """Its slices."""


def part_name(actor: str, incarnation: int, began: int) -> str:
    """Of the profile that began then."""
    return f"{actor}.{incarnation}.{began}{PART}"


def is_part(name: str, actors: Collection[str]) -> bool:
    """Is this the name of a part of one of these actors? The folder may have files of others."""
    actor, *numbers = name.removesuffix(PART).rsplit(".", 2)
    return name.endswith(PART) and actor in actors and len(numbers) == 2 and all(map(str.isdecimal, numbers))


def engine_part(engine: int) -> str:
    """In the place of an actor's name: of all actors of an engine on another machine."""
    return f"engine-{engine}"


def change_profile(words: ProfileWords, seconds: float) -> int:
    """Begin one for so long, or end it (0): its number, or 0 if there is one already, or none. It may come twice."""
    now, (began, ends) = time.monotonic_ns(), words.state
    if seconds and ends < now:
        words.state = ProfileState(now, now + int(seconds * 1e9))
        return now
    if not seconds and ends:
        words.state = ProfileState(began, 0)
        return began
    return 0


def write_part(folder: Path, name: str, part: Part) -> None:
    """Whole or not at all; why not stands in the log."""
    path = folder / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_whole(path, msgspec.json.encode(part))
    except OSError as error:
        log.warning("--profile-dir: %s: %s", path, error.strerror)


class MissedProfiles:
    """Of one reader of the words: which profiles had begun and were stopped between two of its looks."""

    def __init__(self, words: ProfileWords) -> None:
        self._words = words
        self._known = self._doubted = words.state.began

    def know(self, number: int) -> None:
        """It was seen while it ran."""
        self._known = number

    def look(self) -> int:
        """The number of one, once; 0: there is none. To be asked while none runs."""
        began = self._words.state.began
        if began in (self._known, self._doubted):
            missed = 0 if began == self._known else began
            self._known = began
            return missed
        self._doubted = began  # one that begins has stored its number, and its end is to come: at the next look it is
        return 0


class ProfileWatch:
    """Of one actor. `make_device`: what else is to be started with a profile."""

    def __init__(self, words: ProfileWords, folder: str | None, actor: str, incarnation: int) -> None:
        self.words = words
        self.make_device: Callable[[], DeviceProfiler] | None = None
        self._folder = None if folder is None else Path(folder)
        self._actor, self._incarnation = actor, incarnation
        self._seen = 0  # the end of the profile that is known
        self._missed = MissedProfiles(words)
        self._device: DeviceProfiler | None = None
        self._device_entries: list[Entry] = []
        self._sampler: StackSampler | None = None
        self._stopped = threading.Event()  # the device's part is there
        self._began = 0

    def look(self) -> None:
        """In each turn: begin, or give the device's part."""
        ends = self.words.ends
        if (
            self._sampler is not None
            and not self._stopped.is_set()
            and (ends != self._seen or time.monotonic_ns() > ends)
        ):
            self._stop_device()
        elif ends != self._seen and self._folder is not None:
            self._seen = ends
            if ends and time.monotonic_ns() < ends:
                self._start()
        elif not ends and self._folder is not None and (missed := self._missed.look()):
            self._write(missed, Part(self._actor, self._incarnation, missed, False, [self._name()]))

    def _start(self) -> None:
        if self._sampler is not None and self._sampler.thread.is_alive():
            self._seen = 0  # the one before is just written: in the next turn
            return
        self._began, self._device_entries = time.monotonic_ns(), []
        self._stopped.clear()
        number, ends = self.words.state
        self._missed.know(number)
        self._device = None if self.make_device is None else self.make_device()

        def is_wanted() -> bool:
            return self.words.ends == ends and time.monotonic_ns() < ends

        self._sampler = StackSampler(os.getpid(), is_wanted, lambda found, cut: self._give(number, found, cut))

    def _stop_device(self) -> None:
        if self._device is not None:
            self._device_entries = self._device.stop()
            self._device = None
        self._stopped.set()

    def _give(self, number: int, found: list[Entry], cut: bool) -> None:
        """By the sampler's thread, once the actor's own has had a turn to stop the device."""
        self._stopped.wait(TURN_S)
        entries = [self._name(), *found, *self._device_entries]
        self._write(number, Part(self._actor, self._incarnation, self._began, cut, entries))

    def _write(self, number: int, part: Part) -> None:
        assert self._folder is not None
        write_part(self._folder, part_name(self._actor, self._incarnation, number), part)

    def _name(self) -> Entry:
        """What a trace shows its process as."""
        return {"ph": "M", "name": "process_name", "pid": os.getpid(), "tid": 0, "args": {"name": self._actor}}
