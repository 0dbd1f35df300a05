"""Clients of /v1/batches, each of which uploads a file, has its lines answered, and reads what became of them; and of
/v1/messages/batches, which send their requests along.
"""

from __future__ import annotations

import asyncio
import json
import random
import time
from pathlib import Path
from typing import Any

import aiohttp

from . import texts
from .talking import Request

PATH, MESSAGES = "/v1/batches", "/v1/messages/batches"
OF_LINES = ("/v1/completions", "/v1/chat/completions")
MOST_LINES = 12
LOOK_S = 0.1  # between two looks at a batch, which says nothing by itself
ENDS = ("completed", "failed", "expired", "cancelled", "ended")


def server_options(folder: Path) -> list[str]:
    """A folder for files, and lines enough at once."""
    return ["--files-dir", str(folder / "files"), "--max-batch-lines", "16"]


def batches(rng: random.Random, count: int) -> list[Request]:
    """Some lines each, as they are asked by others one by one; each third batch is one of messages."""
    some = texts.requests(rng, 4 * count)
    made: list[Request] = []
    for number in range(count):
        if number % 3 == 2:
            made.append((MESSAGES, {"lines": [_message(rng) for _ in range(1 + number % MOST_LINES)], "stream": False}))
            continue
        path = OF_LINES[number % len(OF_LINES)]
        own = [body | {"stream": False} for one, body in some if one == path]
        lines = rng.choices([{key: body[key] for key in body if key != "stream_options"} for body in own], k=MOST_LINES)
        made.append((PATH, {"endpoint": path, "lines": lines[: 1 + number % MOST_LINES], "stream": False}))
    return made


def _message(rng: random.Random) -> dict[str, Any]:
    """Greedy or seeded, long or short."""
    drawn = {"temperature": 0} if rng.random() < 0.5 else {"temperature": 1.0, "seed": rng.randrange(1000)}
    asked = [{"role": "user", "content": rng.choice(texts.QUESTIONS)}]
    return {"max_tokens": rng.choice([8, 40, 150]), "messages": asked} | drawn


async def hold_messages(session: aiohttp.ClientSession, body: dict[str, Any], tally: Any) -> Any:
    """As `hold`, of a batch of messages, which is removed in the end."""
    model = {"model": body["model"]} if "model" in body else {}
    names = list(map(str, range(len(body["lines"]))))
    asked = [{"custom_id": name, "params": line | model} for name, line in zip(names, body["lines"], strict=True)]
    try:
        batch = await _ended(session, MESSAGES, await _said(session.post(MESSAGES, json={"requests": asked})), tally)
        async with session.get(f"{MESSAGES}/{batch['id']}/results") as response:
            results = [json.loads(line) for line in (await response.read()).splitlines()]
        await _said(session.delete(f"{MESSAGES}/{batch['id']}"))
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        tally.lost(session, error)
        return None
    counts = batch["request_counts"]
    if sorted((one["custom_id"] for one in results), key=int) != names or counts["succeeded"] != len(names):
        tally.bad("wrong", f"{len(results)} results of {len(names)} requests: {batch}, {results}")
        return None
    messages = [one["result"]["message"] for one in sorted(results, key=lambda one: int(one["custom_id"]))]
    told = ["".join(block["text"] for block in message["content"]) for message in messages]
    return told, [message["stop_reason"] for message in messages], len(messages), []


async def hold(session: aiohttp.ClientSession, body: dict[str, Any], tally: Any) -> Any:
    """As `ask` of answers: (the text of each line, how it ended, number of lines that were answered, nothing)."""
    model = {"model": body["model"]} if "model" in body else {}
    asked = [
        {"custom_id": str(number), "method": "POST", "url": body["endpoint"], "body": line | model}
        for number, line in enumerate(body["lines"])
    ]
    try:
        form = aiohttp.FormData({"purpose": "batch"})
        form.add_field("file", "".join(json.dumps(line) + "\n" for line in asked), filename="in.jsonl")
        file = await _said(session.post("/v1/files", data=form))
        given = {"input_file_id": file["id"], "endpoint": body["endpoint"], "completion_window": "24h"}
        batch = await _ended(session, PATH, await _said(session.post(PATH, json=given)), tally)
        answers = await _answers(session, batch)
        for name in (file["id"], batch["output_file_id"]):
            await _said(session.delete(f"/v1/files/{name}"))
    except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
        tally.lost(session, error)
        return None
    names = [answer["custom_id"] for answer in answers]
    if sorted(names, key=int) != [line["custom_id"] for line in asked]:
        tally.bad("wrong", f"lines {names} of {len(asked)} are answered: {batch}")
    answers.sort(key=lambda answer: int(answer["custom_id"]))
    choices = [answer["response"]["body"]["choices"] for answer in answers]
    told = [
        " | ".join(one.get("text") or one.get("message", {}).get("content") or "" for one in some) for some in choices
    ]
    return told, [one["finish_reason"] for some in choices for one in some], len(answers), []


async def _ended(session: aiohttp.ClientSession, path: str, batch: dict[str, Any], tally: Any) -> dict[str, Any]:
    """The batch at its end; for how long none of its lines was answered is told."""
    gap, changed = (0.0, ""), time.monotonic()
    while batch.get("status", batch.get("processing_status")) not in ENDS:
        await asyncio.sleep(LOOK_S)
        found = await _said(session.get(f"{path}/{batch['id']}"))
        now = time.monotonic()
        gap = max(gap, (now - changed, tally.last_fault))
        if found["request_counts"] != batch["request_counts"]:
            changed = now
        batch = found
    tally.pauses.append(gap[0])
    tally.gaps.append(gap)
    return batch


async def _said(asked: Any) -> dict[str, Any]:
    async with asked as response:
        if response.status != 200:
            raise ConnectionError(f"{response.status} {await response.text()}")
        return dict(await response.json())


async def _answers(session: aiohttp.ClientSession, batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Of a batch that came to its end without errors."""
    if batch["status"] != "completed" or batch["error_file_id"] is not None:
        raise ConnectionError(f"a batch that ended otherwise: {batch}")
    async with session.get(f"/v1/files/{batch['output_file_id']}/content") as response:
        return [json.loads(line) for line in (await response.read()).splitlines()]
