"""A target that was asked what it can, and runs of requests against it."""

from __future__ import annotations

import asyncio
import functools
import json
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .. import processes
from ..client_tls import ClientTls
from ..server import ServerError, ask
from .client import Target, open_session, send
from .prompts import Count, Prompt, words_counted
from .record import RequestRecord

BUSY = 0.8  # of one core: from here on the client may be what is measured


@dataclass(frozen=True, slots=True)
class Run:
    """What one run gave."""

    records: list[RequestRecord]
    duration_s: float
    usage: dict[str, Any]  # CPU and memory, of the server and of this process


def first_model(base_url: str, headers: dict[str, str], tls: ClientTls) -> str:
    """The model that the server names first."""
    try:
        request = urllib.request.Request(base_url + "/v1/models", headers=headers)
        with ask(request, 30.0, tls) as response:
            return str(json.load(response)["data"][0]["id"])
    except (OSError, ValueError, LookupError, TypeError) as error:
        raise ServerError(f"{base_url}/v1/models names no model ({error}); --model does") from None


def counter(target: Target, tokenizer: str | None) -> tuple[Count, str]:
    """How tokens of a text are counted, and by whom: a tokenizer's folder, the server, or nobody."""
    if tokenizer:
        from tokenizers import Tokenizer

        made = Tokenizer.from_file(f"{tokenizer.rstrip('/')}/tokenizer.json")
        return lambda text: len(made.encode(text).ids), tokenizer
    count = functools.partial(_tokenize, target)
    try:
        count("a b")
    except (urllib.error.HTTPError, ValueError, LookupError, TypeError):
        return words_counted, "words"
    except OSError as error:
        raise ServerError(f"{target.base_url}: {error}") from None
    return count, "/tokenize"


def _tokenize(target: Target, text: str) -> int:
    body = json.dumps({"model": target.model, "prompt": text}).encode()
    headers = {"Content-Type": "application/json", **target.headers}
    request = urllib.request.Request(target.base_url + "/tokenize", data=body, headers=headers)
    with ask(request, 60.0, target.tls) as response:
        return int(json.load(response)["count"])


async def probe(target: Target, prompt: Prompt) -> Target:
    """One request that is not counted. A server that refuses what is not in OpenAI's API is asked without it."""
    tries = [target]
    without: dict[str, Any] = {"salt": "", "continuous_usage": False, "ignore_eos": False}
    tries += [replace(target, **dict(list(without.items())[:count])) for count in (1, 2, 3)]
    async with open_session(target) as session:
        for one in tries:
            record = await send(session, one, prompt)
            if record.error not in ("http 400", "http 422"):
                break
    if record.error:
        raise ServerError(f"the first request failed: {record.error}: {record.detail}")
    return one


async def run_load(
    target: Target,
    prompts: Sequence[Prompt],
    offsets: Sequence[float],
    limit: int | None = None,
    done: Callable[[RequestRecord], None] | None = None,
) -> tuple[list[RequestRecord], float]:
    """Send each prompt at its time, at most `limit` at once; the records in order, and how long all took."""
    gate = asyncio.Semaphore(limit or max(1, len(prompts)))
    async with open_session(target) as session:

        async def one(prompt: Prompt) -> RequestRecord:
            async with gate:
                record = await send(session, target, prompt)
            if done:
                done(record)
            return record

        began = time.perf_counter()  # uvloop's clock has milliseconds
        tasks: list[asyncio.Task[RequestRecord]] = []
        async with asyncio.TaskGroup() as group:
            for prompt, offset in zip(prompts, offsets, strict=True):
                if (ahead := began + offset - time.perf_counter()) > 0:
                    await asyncio.sleep(ahead)
                tasks.append(group.create_task(one(prompt)))
        return [task.result() for task in tasks], time.perf_counter() - began


def measured(
    target: Target,
    prompts: Sequence[Prompt],
    offsets: Sequence[float],
    limit: int | None = None,
    *,
    pid: int | None = None,
    done: Callable[[RequestRecord], None] | None = None,
) -> Run:
    """A run with what it cost the server's process tree, where that is known, and this process."""
    import uvloop

    before = None if pid is None else processes.cpu_seconds(pid)
    own = time.process_time()
    records, duration = uvloop.run(run_load(target, prompts, offsets, limit, done))
    own = time.process_time() - own
    chunks = sum(len(record.chunks) for record in records)
    tokens = sum(record.output_tokens for record in records)
    usage: dict[str, Any] = {
        "client_cpu_s": own,
        "client_share": own / duration,
        "client_us_a_chunk": own / chunks * 1e6 if chunks else None,
        "client_busy": own / duration > BUSY,
    }
    after = None if pid is None else processes.cpu_seconds(pid)
    if pid is not None and before is not None and after is not None:
        spent = after - before
        usage |= {"server_pid": pid, "server_cpu_s": spent, "server_pss_bytes": processes.pss_bytes(pid)}
        usage["server_cpu_ms_a_token"] = spent / tokens * 1e3 if tokens else None
    return Run(records, duration, usage)
