"""instructor: each of its modes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import instructor
import openai
from told import MODEL, REPORT, URL, Report, told

MODES = {"TOOLS": "any", "TOOLS_STRICT": "any", "JSON_SCHEMA": "any", "MD_JSON": "fenced", "RESPONSES_TOOLS": "any"}


def steps(mode: str, word: str) -> dict[str, Callable[[], Any]]:
    server = openai.OpenAI(base_url=URL, api_key="none", max_retries=0)
    client = instructor.from_openai(server, mode=instructor.Mode[mode])
    more: Any = {"messages": [{"role": "user", "content": f"@{word}"}], "model": MODEL, "max_retries": 0}

    def plain(report: Any) -> Report:
        return Report(**report.model_dump())

    return {
        f"{mode} report": lambda: plain(client.create(response_model=Report, **more)),
        f"{mode} streamed report": lambda: plain([*client.create_partial(response_model=Report, **more)][-1]),
        f"{mode} error": lambda: client.create(response_model=Report, temperature=9, **more),
    }


every = {name: step for mode, word in MODES.items() for name, step in steps(mode, word).items()}
told(every, report=REPORT, error="temperature must be")
