"""A tower's forward pass in parts, so that steps beside it stay short: layer by layer, over as many steps as it takes.

transformers' towers have one call each. It runs in a thread, which stops before every layer until it is told to go on:
either that thread runs or who waits for it, never both. What a part is in layers is the scheduler's guess alone
(scheduler/policy/pictures.py); who wants the whole waits for all that is left. Nothing of it outlives the worker: its
next life begins the picture again.
"""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch
from torch import nn

log = logging.getLogger("worker")
MOST = 4  # that have begun; of more the oldest is begun again when it is wanted
T = TypeVar("T")


class Dropped(BaseException):
    """Nobody wants what this thread computes."""


class Work(Generic[T]):
    """One computation."""

    def __init__(self, make: Callable[[], T], register: Callable[[Work[T]], None], device: torch.device) -> None:
        self._make, self._register = make, register
        self._device = torch.cuda.current_device() if device.type == "cuda" else None  # of who asks
        self._passed = self._may_pass = 0
        self._dropped = False
        self._go, self._stands = threading.Semaphore(0), threading.Semaphore(0)
        self._threads = torch.get_num_threads()
        self._thread: threading.Thread | None = None
        self._made: T | None = None
        self._error: BaseException | None = None
        self.done = False

    def advance(self, layers: int) -> None:
        """Go on until so many are computed, all told."""
        if self.done or (self._thread is not None and layers <= self._may_pass):
            return
        self._may_pass = layers
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="tower", daemon=True)
            self._thread.start()
        else:
            self._go.release()
        self._stands.acquire()

    def result(self, layers: int) -> T:
        """All of it, of so many layers; what went wrong is raised here."""
        self.advance(layers)
        if self._error is not None:
            try:
                raise self._error
            finally:
                self._error = None  # its frames are to hold no one that holds it
        assert self._made is not None
        return self._made

    def drop(self) -> None:
        """Its thread ends."""
        self._dropped = True
        if self._thread is not None and not self.done:
            self._go.release()
            self._thread.join()

    def before_layer(self) -> None:
        """Called in its thread."""
        if self._passed >= self._may_pass:
            self._stands.release()
            self._go.acquire()
            if self._dropped:
                raise Dropped
        self._passed += 1

    def _run(self) -> None:
        self._register(self)
        try:
            torch.set_num_threads(self._threads)
            if self._device is not None:
                torch.cuda.set_device(self._device)  # each thread begins at the first
            with torch.inference_mode():
                self._made = self._make()
        except Dropped:
            pass
        except BaseException as error:
            log.debug("a tower failed", exc_info=True)
            self._error = error.with_traceback(None)  # whose frames hold all that was computed, on a GPU, too
            error.__cause__ = error.__context__ = None
        self.done = True
        self._stands.release()


class Slices(Generic[T]):
    """Of one tower."""

    def __init__(self, tower: nn.Module, device: torch.device) -> None:
        self._device = device
        self._local = threading.local()
        self._works: OrderedDict[bytes, Work[T]] = OrderedDict()
        layers = [one for part in tower.modules() if isinstance(part, nn.ModuleList) for one in part]
        self.layers = len(layers)
        for layer in layers:
            layer.register_forward_pre_hook(self._before)

    def advance(self, key: bytes, make: Callable[[], T], share: float) -> None:
        """Compute this share of it, all told."""
        work = self._works.get(key)
        if work is None:
            work = self._works[key] = Work(make, self._register, self._device)
            if len(self._works) > MOST:
                self._works.popitem(last=False)[1].drop()
        work.advance(int(share * self.layers))

    def take(self, key: bytes) -> Work[T] | None:
        """What has begun of it, which is the caller's now."""
        return self._works.pop(key, None)

    def all_of(self, work: Work[T]) -> T:
        """Its result; more layers than there are, since some towers call some of theirs twice."""
        return work.result(1 << 30)

    def _register(self, work: Work[T]) -> None:
        self._local.work = work

    def _before(self, module: nn.Module, given: Any) -> None:
        work: Work[T] | None = getattr(self._local, "work", None)
        if work is not None:
            work.before_layer()
