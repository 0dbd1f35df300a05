"""Valid requests of random mixtures of fields to every door, by many clients at once, some of whom hang up.

Each is the same by its seed and number: `tools/trial mixtures --seed 7 --number 31` asks that one alone.
"""

from __future__ import annotations

import gzip
import json
import queue
import random
import re
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from .launched import ROOT, SETTLE_S, Launched
from .mixed import answers, checks
from .mixed.asked import Asked
from .mixed.counts import count_of
from .mixed.requests import request, vectors
from .mixed.said import Said, difference
from .mixed.servers import LENGTH, SERVERS, Server, server
from .wire import Answer, Connection, Cut
from .wire import request as http

CLIENTS, REQUESTS, ALONE = 48, 400, 60
EVERY = 20  # requests from one fault to the next
VALUE = re.compile(r"^(\S+?)(?:\{.*\})? (\S+)$", re.MULTILINE)
TOO_LONG = re.compile(rb"context_length_exceeded|exceed_context_size_error|maximum context length")
ANSWER_S = 180.0  # for the last of a crowd, on a machine that is busy
SLOW_S = 0.002  # between two reads


@dataclass
class Run:
    """One server and what it was asked."""

    seed: int
    server: Server
    launched: Launched
    numbers: Sequence[int]
    found: Counter[str] = field(default_factory=Counter)
    known: dict[int, tuple[Asked, Any]] = field(default_factory=dict)
    tokens: int = 0  # of all answers, as usage tells
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, number: int, asked: Asked, *wrong: str) -> None:
        with self.lock:
            for what in wrong:
                print(f"mixtures: {number} {asked.door}: {what}"[:1000], flush=True)
                self.found[f"seed {self.seed} number {number} ({asked.door}): {what}"[:400]] += 1
            self.found["right"] += not wrong

    def keep(self, number: int, asked: Asked, same: Any, tokens: int) -> None:
        with self.lock:
            self.tokens += tokens
            if asked.settled:
                self.known[number] = asked, same


def mixtures(seeds: Sequence[int] = (), requests: int = 0, numbers: Sequence[int] = ()) -> Counter[str]:
    """Valid requests of random mixtures of fields to every door: right, and the same alone and in a crowd."""
    found: Counter[str] = Counter()
    for seed in seeds or range(len(SERVERS)):
        asked_of = server(seed)
        print(f"mixtures: seed {seed}, {' '.join(asked_of.options)}", flush=True)
        begun = time.monotonic()
        options = (*asked_of.options, "--max-restarts", "10000", "--max-num-queued-reqs", "256")
        with Launched(*options) as launched:
            run = Run(seed, asked_of, launched, numbers or range(requests or REQUESTS))
            before = launched.actors("")
            _crowd(run)
            _settled(run, before)
            _alone(run)
        if launched.status:
            run.found[f"seed {seed}: it ended with {launched.status}"] += 1
        seconds = time.monotonic() - begun
        print(f"mixtures: {run.found['right']} right, {len(run.found) - 1} not, {seconds:.0f} s", flush=True)
        found += run.found
    return found


# --- a crowd ---------------------------------------------------------------------------------------------------------


def _crowd(run: Run) -> None:
    """All at once; where it is rough, an actor is killed now and then."""
    left: queue.SimpleQueue[int] = queue.SimpleQueue()
    for number in run.numbers:
        left.put(number)
    threads = [threading.Thread(target=_client, args=(run, left)) for _ in range(min(CLIENTS, len(run.numbers)))]
    for thread in threads:
        thread.start()
    rng = random.Random(run.seed)
    for fault in range(1, len(run.numbers) // EVERY + 1):
        while left.qsize() > len(run.numbers) - fault * EVERY and any(thread.is_alive() for thread in threads):
            time.sleep(0.01)  # until so many more are asked
        if run.server.rough:
            _kill_one(run.launched, rng)
    for thread in threads:
        thread.join()


def _kill_one(launched: Launched, rng: random.Random) -> None:
    names = sorted(launched.actors(""))
    if names:
        launched.kill(rng.choice(names))


def _client(run: Run, left: queue.SimpleQueue[int]) -> None:
    while True:
        try:
            number = left.get_nowait()
        except queue.Empty:
            return
        asked, rng = request(run.seed, number, run.server.pooled, run.server.thinks)
        if not run.server.rough:
            if asked.body.get("use_beam_search") or asked.body.get("best_of"):
                continue  # tokens are counted that no usage tells
            asked = asked.counted()
        behaviour = rng.choices(("whole", "hangs up", "slow", "half"), (80, 8, 6, 6))[0]
        if behaviour in ("hangs up", "half"):
            if run.server.rough:
                _go_away(run, asked, rng, behaviour)
            continue
        try:
            answer = _ask(run, asked, slowly=behaviour == "slow")
            run.note(number, asked, *_looked_at(run, number, asked, answer))
        except (Cut, OSError) as error:
            run.note(number, asked, f"no answer: {error!r}")
        except (LookupError, ValueError, TypeError, AttributeError) as error:  # it is not of the dialect's form
            run.note(number, asked, f"{error!r} in {answer.status} {answer.body[:300]!r}")


def _bytes(asked: Asked) -> bytes:
    """The body as it is, or of some requests gzipped."""
    body, headers = json.dumps(asked.body).encode(), dict(asked.headers)
    if len(body) % 7 == 0:
        body, headers["Content-Encoding"] = gzip.compress(body), "gzip"
    return http("POST", asked.path, body, headers)


def _ask(run: Run, asked: Asked, slowly: bool = False) -> Answer:
    with run.launched.connection(ANSWER_S) as connection:
        if slowly:
            connection.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.send(_bytes(asked))
        if not slowly:
            return connection.answer()
        status, headers = connection.head()
        if headers.get("transfer-encoding") != "chunked":
            return Answer(status, headers, connection._exactly(int(headers.get("content-length", 0))))
        body = b""
        for chunk in connection.chunks():
            body += chunk
            time.sleep(SLOW_S)  # it reads slowly
        return Answer(status, headers, body)


def _go_away(run: Run, asked: Asked, rng: random.Random, behaviour: str) -> None:
    data = _bytes(asked)
    with Connection(run.launched.address) as connection:
        connection.send(data[: rng.randrange(1, len(data))] if behaviour == "half" else data)
        if behaviour == "hangs up" and rng.random() < 0.7:
            connection.socket.settimeout(rng.random())
            try:
                connection.socket.recv(rng.choice((1, 200, 5000)))
            except TimeoutError:
                return


def _looked_at(run: Run, number: int, asked: Asked, answer: Answer) -> list[str]:
    if answer.status in (429, 503) and "retry-after" in answer.headers:
        return []
    if answer.status == 400 and run.server.room < LENGTH and TOO_LONG.search(answer.body):
        return []
    if answer.status != 200:
        return [f"{answer.status} {answer.body[:200].decode(errors='replace')}"]
    if asked.door == "embeddings":
        run.keep(number, asked, vectors(answer.json), 0)
        return checks.wrong_vectors(asked, answer.json)
    said = answers.said(asked, answer)
    if "Idempotency-Key" in asked.headers and (other := _replayed(run, asked, said)):
        said.wrong.append(f"its Idempotency-Key finds another answer: {other}")
    if asked.door == "responses" and not _is_kept(run, asked, answer, said):
        said.wrong.append("it is not kept as it was told, or though it was not to be")
    if number % 3 == 0 and (wrong := _miscounted(run, asked, said)):
        said.wrong.append(wrong)
    run.keep(number, asked, said.same(asked.tells_ids), said.tokens or 0)
    return checks.wrong(asked, said, run.server.room)


def _miscounted(run: Run, asked: Asked, said: Said) -> str:
    count = count_of(asked)
    if count is None or said.prompt is None:
        return ""
    answer = run.launched.ask("POST", count.path, count.body)
    if answer.status != 200:
        return f"{count.path}: {answer.status} {answer.body[:200]!r}"
    told = answer.json[count.name]
    return "" if told == said.prompt else f"{count.path} counts {told}, usage {said.prompt}"


def _is_kept(run: Run, asked: Asked, answer: Answer, said: Said) -> bool:
    whole = json.loads(answer.events[-1])["response"] if asked.stream else answer.json
    again = run.launched.ask("GET", f"/v1/responses/{whole['id']}")
    if asked.body.get("store") is False:
        return again.status == 404
    if again.status != 200 or answers.said(asked.streamed(False), again).same() != said.same():
        return False
    calls = any(item["type"] == "function_call" for item in whole["output"])
    if run.server.room < LENGTH or calls or "instructions" in asked.body:  # these are not gone on with
        return True
    turn = {"previous_response_id": whole["id"], "input": "And then?", "max_output_tokens": 2}
    on = run.launched.ask("POST", "/v1/responses", turn)
    if on.status != 200:
        return False
    with run.lock:
        run.tokens += on.json["usage"]["output_tokens"]
    return bool(on.json["usage"]["input_tokens"] > (said.prompt or 0))


def _replayed(run: Run, asked: Asked, said: Said) -> str:
    again = _ask(run, asked)
    if again.status != 200:
        return f"{again.status} {again.body[:200]!r}"
    if "idempotent-replayed" not in again.headers:
        return "it was answered anew"
    return difference(answers.said(asked, again).same(), said.same())


# --- afterwards ------------------------------------------------------------------------------------------------------


def _metrics(launched: Launched) -> dict[str, float]:
    """Sums over all labels."""
    found: Counter[str] = Counter()
    for name, value in VALUE.findall(launched.ask("GET", "/metrics").body.decode()):
        found[name] += float(value)
    return found


IDLE = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")


def _settled(run: Run, before: dict[str, int]) -> None:
    """Nothing is left running, waiting or held, and nobody has died of itself."""
    run.launched.wait_ready()
    deadline = time.monotonic() + SETTLE_S
    while any(left := {name: _metrics(run.launched)[name] for name in IDLE}.values()):
        if time.monotonic() > deadline:
            run.found[f"seed {run.seed}: afterwards {left}"] += 1
            break
        time.sleep(0.1)  # between two looks
    if bad := [line for line in run.launched.lines if checks.is_bad(line)]:
        run.found[f"seed {run.seed}: the log has {bad[0][:200]}"] += len(bad)
    if run.server.rough:  # what a dead frontend has kept for an Idempotency-Key has its slot for a while
        return
    asking = [sys.executable, "-m", "actorserve", "why", "--list", "--server", f"pid:{run.launched.process.pid}"]
    left_over = subprocess.run(asking, capture_output=True, text=True, cwd=ROOT).stdout
    if "-" in left_over:  # in a request's id
        run.found[f"seed {run.seed}: afterwards there are still {left_over[:300]}"] += 1
    if run.launched.actors("") != before:
        run.found[f"seed {run.seed}: an actor died"] += 1
    counted = _metrics(run.launched)["vllm:generation_tokens_total"]
    if counted != run.tokens:
        run.found[f"seed {run.seed}: {counted:.0f} tokens are counted, usage tells {run.tokens}"] += 1


def _alone(run: Run) -> None:
    """Once more, one at a time, the other way: streamed what was whole, and whole what was streamed."""
    rng = random.Random(run.seed)
    numbers = rng.sample(sorted(run.known), min(ALONE, len(run.known)))
    for number in sorted(numbers):
        asked, same = run.known[number]
        other = asked if asked.door == "embeddings" else _other(asked)
        try:
            answer = _ask(run, other)
            again = (
                vectors(answer.json)
                if asked.door == "embeddings"
                else answers.said(other, answer).same(asked.tells_ids)
            )
        except (Cut, OSError, LookupError, ValueError, TypeError) as error:
            run.note(number, asked, f"alone: {error!r}")
            continue
        within = checks.LITTLE if asked.door == "embeddings" else 0  # --deterministic is not for models that pool
        told = difference(again, same, within=within)
        run.note(number, asked, *([f"alone {told}"] if told else []))


def _other(asked: Asked) -> Asked:
    """Streamed if it was not, where that can be."""
    body = asked.body
    whole_only = asked.path.endswith("/batch") or body.get("use_beam_search") or body.get("best_of")
    inside = body.get("sampling_params") or body
    if whole_only or inside.get("prompt_logprobs") is not None:
        return asked.streamed(False)
    return asked.streamed(not asked.stream)
