"""What operators ask of a running server, as it crosses rings. Each may come twice: what is done is answered."""

from __future__ import annotations

from typing import Literal

from .wire import Message

Mode = Literal["abort", "wait", "keep"]  # what becomes of requests when nothing is computed any more


class Sleep(Message, frozen=True, tag=121):
    """Frontend → scheduler: give weights and KV memory back; answered by SleepChanged once that is done."""

    call: int
    level: int
    mode: Mode
    refuses: bool = False
    wait_s: int = 0


class WakeUp(Message, frozen=True, tag=122):
    """Frontend → scheduler: have these parts (shm/kv_map/sleep.py) again; answered by SleepChanged."""

    call: int
    parts: int


class Parked(Message, frozen=True, tag=123):
    """Worker → scheduler: this member of its group has no model and no KV memory."""

    rank: int
    level: int


class LookAtSleep(Message, frozen=True, tag=124):
    """Scheduler → worker: the sleep's word is another one. It says no more: the word may have changed since."""


class SleepChanged(Message, frozen=True, tag=125):
    """Scheduler → frontend: an engine sleeps, or has woken, as was asked."""

    call: int
