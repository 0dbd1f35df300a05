"""What all sessions have in common: each runs in its client's own virtual environment, and tells one line a step."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import sys
from collections.abc import Callable
from typing import Any, Literal

from pydantic import BaseModel

URL = sys.argv[1] + "/v1"
ROOT = sys.argv[1]
MODEL = "client"
HELLO, WEATHER = "Hello from the model, and more of it.", "It is 7 degrees in Oslo."
OSLO = {"city": "Oslo"}
EMBEDDER, WIDTH = "embedder", 32  # of the other model, which makes vectors


class Report(BaseModel):
    """Of what it says nothing is left to choose, so that a grammar makes any model say it."""

    city: Literal["Oslo"]
    degrees: Literal[7]


REPORT = Report(city="Oslo", degrees=7)


def told(steps: dict[str, Callable[[], Any]], **expected: Any) -> None:
    """A line of JSON for each step: its name, and what came in the place of what its name promises, or null."""
    for name, step in steps.items():
        try:
            got = step()
            got = asyncio.run(got) if inspect.iscoroutine(got) else got
        except Exception as error:  # whatever a client makes of an answer that it does not understand
            got = f"{type(error).__name__}: {error}"
        right = expected[name.split()[-1]]
        holds = right in got if isinstance(right, str) and isinstance(got, str) else got == right
        print(json.dumps([name, None if holds else repr(got)[:600]]), flush=True)
    os._exit(0)  # some clients have threads that wait for something for ever
