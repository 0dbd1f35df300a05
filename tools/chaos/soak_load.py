"""The load of a soak: random requests, of which some are broken off, and what is found out about their answers.

There are few enough different ones that each answer can be compared with the one that the same request had before.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import aiohttp

QUESTIONS = [
    "What is the capital of France?", "How do I set an API key?", "Hello!", "What is 3 plus 4?", "Tell me a story.",
    "Who are you?", "Count to twenty.", "What is the opposite of hot?", "How does actorserve work?", "Thank you!",
]  # fmt: skip


@dataclass
class Tally:
    """What happened."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    answers: dict[str, str] = field(default_factory=dict)  # the first answer to each request body
    memory: list[int] = field(default_factory=list)  # PSS of all processes, bytes

    def fail(self, reason: str) -> None:
        self.counts["failed"] += 1
        if len(self.failures) < 20:
            self.failures.append(reason)


def random_request(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """Path and body of one request; there are few enough different ones that answers can be compared."""
    body: dict[str, Any] = {"max_tokens": rng.choice([8, 40, 120]), "stream": rng.random() < 0.7}
    if rng.random() < 0.5:
        body["temperature"] = 0
    else:
        body |= {"temperature": 1.0, "seed": rng.randrange(3)}
    if rng.random() < 0.3:
        body["n"] = 2
    if body["stream"]:
        body["stream_options"] = {"include_usage": True}
    question = rng.choice(QUESTIONS)
    if rng.random() < 0.7:
        return "/v1/chat/completions", body | {"messages": [{"role": "user", "content": question}]}
    return "/v1/completions", body | {"prompt": question * rng.choice([1, 5, 20]), "ignore_eos": True}


def texts_of(chunks: list[dict[str, Any]]) -> str:
    """All choices' texts and finish reasons, from chunks or from one whole answer."""
    texts: Counter[int] = Counter()
    parts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk["choices"]:
            message = choice.get("delta") or choice.get("message") or {}
            text = choice.get("text") or message.get("content") or ""
            parts[choice["index"]] = parts.get(choice["index"], "") + text
            texts[choice["index"]] += choice.get("finish_reason") is not None
    if any(count != 1 for count in texts.values()) or not texts:
        return f"broken: finish reasons {dict(texts)}"
    return json.dumps([parts[index] for index in sorted(parts)])


async def ask(session: aiohttp.ClientSession, url: str, rng: random.Random, tally: Tally, abort_rate: float) -> None:
    path, body = random_request(rng)
    abort_after = rng.expovariate(5.0) if rng.random() < abort_rate else None
    try:
        async with asyncio.timeout(abort_after), session.post(url + path, json=body) as response:
            text = await response.text()
            if response.status == 503:
                tally.counts["refused (503)"] += 1
                return
            if response.status != 200:
                tally.fail(f"{response.status} {text[:200]}")
                return
    except TimeoutError:
        tally.counts["aborted"] += 1
        return
    except aiohttp.ClientError as error:
        tally.fail(f"{type(error).__name__} {error}")
        return
    check(path, body, text, tally)


def check(path: str, body: dict[str, Any], text: str, tally: Tally) -> None:
    """One whole answer: complete, and the same as before for the same request."""
    if body["stream"]:
        events = [line[6:] for line in text.splitlines() if line.startswith("data: ")]
        if not events or events[-1] != "[DONE]":
            tally.fail(f"a stream without its end: {text[-200:]!r}")
            return
        chunks = [json.loads(event) for event in events[:-1]]
        if any("error" in chunk for chunk in chunks):
            tally.fail(f"an error in a stream: {text[-300:]!r}")
            return
    else:
        chunks = [json.loads(text)]
    if not chunks[-1].get("usage"):
        tally.fail("no usage")
        return
    answer = texts_of(chunks)
    if answer.startswith("broken"):
        tally.fail(answer)
        return
    tally.counts["finished"] += 1
    key = path + json.dumps({k: v for k, v in body.items() if not k.startswith("stream")}, sort_keys=True)
    if tally.answers.setdefault(key, answer) != answer:
        tally.counts["differs"] += 1


@dataclass(frozen=True)
class Load:
    """Where requests go, and what they are like."""

    url: str
    session: aiohttp.ClientSession
    tally: Tally
    abort: float  # share that is broken off
    seed: int

    async def ask(self, rng: random.Random) -> None:
        await ask(self.session, self.url, rng, self.tally, self.abort)

    async def streams(self, count: int, think_s: float, seconds: float) -> None:
        """As many clients, each of which asks again when it has its answer and has thought a while."""
        rng, deadline = random.Random(self.seed), time.monotonic() + seconds

        async def client(number: int) -> None:
            own = random.Random(self.seed * 1000 + number)
            while time.monotonic() < deadline:
                await asyncio.sleep(own.expovariate(1 / think_s) if think_s else 0)
                await self.ask(own)

        await asyncio.gather(*(client(rng.randrange(10**9)) for _ in range(count)))

    async def arrivals(self, rate: float, cycle: int, over: asyncio.Event) -> None:
        """So many requests a second, whatever the server does, until it is over; after `cycle` come the same ones."""
        began = time.monotonic()
        async with asyncio.TaskGroup() as group:
            for number in itertools.count():
                await asyncio.sleep(began + number / rate - time.monotonic())
                if over.is_set():
                    return
                group.create_task(self.ask(random.Random(self.seed * 1000 + number % cycle)))


def clients() -> aiohttp.ClientSession:
    """Any number of connections."""
    return aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=aiohttp.ClientTimeout(total=120))
