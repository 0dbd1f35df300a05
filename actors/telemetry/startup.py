"""The phases of a start, as logs and /metrics name them. Each process has its own ones, in words of its own
(shm/board/startup.py); a restarted actor's are its new ones. What a phase is, is what was done since the one before it
ended.
"""

from __future__ import annotations

from enum import IntEnum

SHOWN_S = 0.005  # what took less is not in a line for people


class StartPhase(IntEnum):
    """The value is its place among the words."""

    SPAWN = 0  # an actor's: until its own code runs; for one that is forked the template's imports and the fork
    IMPORTS = 1
    GROUP = 2  # workers that share a model have met
    WEIGHTS = 3  # read, put together and packed
    DRAFTS = 4  # what --speculative-config wants
    PROFILE = 5  # a GPU's trial of the largest steps
    KV_MEMORY = 6
    GRAPHS = 7
    SET_UP = 8  # the rest: tokenizer, template, HTTP server, what a predecessor left
    MODEL = 9  # the supervisor's: options, and the small files of the model
    MEMORY = 10  # the segment
    ACTORS = 11  # until the last of them was up
    FIRST_TOKEN = 12  # scheduler and worker have met; with --warm-up, a token was generated


def describe_phases(took: dict[str, float]) -> str:
    """For a line of the log: `1.5 s: imports 0.31, weights 1.20`."""
    parts = ", ".join(f"{name} {seconds:.2f}" for name, seconds in took.items() if seconds >= SHOWN_S)
    return f"{sum(took.values()):.1f} s" + (f": {parts}" if parts else "")
