"""Faults, and what clients must see of them: the right text, or an error in the API's own form; no silence, no cut."""

from __future__ import annotations

import contextlib
import json
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from .launched import Launched
from .wire import Answer, Connection, Cut, request

CHAT, MODEL = "/v1/chat/completions", "actorserve-demo"
ACTORS = ("--frontends", "2", "--renderers", "2", "--detokenizers", "2", "--max-restarts", "1000")
LONG = "Tell me a long story."
OTHER = "127.0.0.2"  # another client's address
Trial = Callable[[], Counter[str]]


def chat(stream: bool = True, **more: Any) -> dict[str, Any]:
    """A greedy answer of 96 tokens."""
    asked = {"model": MODEL, "messages": [{"role": "user", "content": LONG}], "temperature": 0, "max_tokens": 96}
    return {**asked, "ignore_eos": True, "stream": stream, **more}


def reference(server: Launched) -> str:
    answer = server.ask("POST", CHAT, chat(stream=False))
    assert answer.status == 200, answer.body
    return answer.text


def judge(found: Counter[str], right: str, ask: Callable[[], Answer]) -> None:
    """Count what came of one answer, by kind."""
    try:
        answer = ask()
        kind = "right" if answer.status == 200 and answer.text == right else f"wrong ({answer.status})"
    except (Cut, OSError, ValueError, KeyError) as error:
        kind = f"cut: {type(error).__name__}"
    found[kind] += 1


def expect_continue() -> Counter[str]:
    """`Expect: 100-continue`, and kill -9 of the frontend behind the 100, before the body or behind it."""
    found: Counter[str] = Counter()
    with Launched(*ACTORS) as server:
        right = reference(server)
        for number in range(24):
            whole = request("POST", CHAT, chat(stream=number % 2 == 0), {"Expect": "100-continue"})
            head, _, body = whole.partition(b"\r\n\r\n")
            with server.connection() as connection:
                connection.send(head + b"\r\n\r\n")
                early = number % 4 < 2
                if early:
                    while b"\r\n\r\n" not in (told := connection.socket.recv(4096)):
                        assert told, "no 100"
                    server.kill("frontend")
                connection.send(body)
                if not early:
                    server.kill("frontend")
                judge(found, right, connection.answer)
            server.wait_ready()
        for number in range(20):  # and without a fault, where the key's frontend is another
            headers = {"Expect": "100-continue", "Idempotency-Key": f"key-{number}"}
            with server.connection() as connection:
                judge(found, right, lambda c=connection, h=headers: c.ask(request("POST", CHAT, chat(), h)))  # type: ignore[misc]
    return found


def sigterm() -> Counter[str]:
    """SIGTERM of frontends: kept connections serve again, streams go on."""
    found: Counter[str] = Counter()
    with Launched(*ACTORS) as server, ThreadPoolExecutor(8) as pool, contextlib.ExitStack() as stack:
        right = reference(server)
        kept = [stack.enter_context(server.connection()) for _ in range(36)]
        for connection in kept:
            assert connection.ask(request("GET", "/health")).status == 200
        for _ in range(6):
            running = [stack.enter_context(server.connection()) for _ in range(8)]
            begun = threading.Barrier(9)

            def stream(connection: Connection, begun: threading.Barrier = begun) -> None:
                connection.send(request("POST", CHAT, chat()))
                begun.wait()
                judge(found, right, connection.answer)

            waiting = [pool.submit(stream, connection) for connection in running]
            begun.wait()
            server.kill("frontend", signal.SIGTERM)
            for one in waiting:
                one.result()
            server.wait_ready()
            for connection in kept:
                judge(found, right, lambda c=connection: c.ask(request("POST", CHAT, chat(stream=False))))  # type: ignore[misc]
    return found


def _told(answer: Answer) -> bool:
    """Is an error said, in the API's own form?"""
    if answer.status >= 500:
        return bool(answer.json["error"]["message"])
    events = [json.loads(event) for event in answer.events if event != "[DONE]"]
    return any("error" in event or event.get("type") in ("error", "response.failed") for event in events)


def _endless() -> list[tuple[str, dict[str, Any]]]:
    """Requests in every dialect that do not end by themselves in time."""
    bodies: list[tuple[str, dict[str, Any]]] = []
    limit = {"ignore_eos": True, "max_tokens": 1500}
    for stream in (True, False):
        bodies += [
            (CHAT, chat(max_tokens=1500, stream=stream)),
            ("/v1/completions", {"prompt": "Once", **limit, "stream": stream}),
            ("/v1/responses", {"input": LONG, "max_output_tokens": 1500, "ignore_eos": True, "stream": stream}),
            ("/v1/messages", {"model": MODEL, "messages": chat()["messages"], **limit, "stream": stream}),
        ]
    return bodies


def _ask_all(server: Launched, victim: str, found: Counter[str]) -> None:
    """Everybody asks, the first answer has begun and others wait: then somebody dies for good."""
    with contextlib.ExitStack() as stack:
        first, *others = [(*body, stack.enter_context(server.connection())) for body in _endless()]
        first[2].send(request("POST", *first[:2]))
        status, headers = first[2].head()
        next(first[2].chunks())
        for path, body, connection in others:
            connection.send(request("POST", path, body))
        server.kill(victim)
        rest: list[Callable[[], Answer]] = [lambda: Answer(status, headers, b"".join(first[2].chunks()))]
        rest += [connection.answer for *_, connection in others]
        for (path, body, _), ask in zip((first, *others), rest, strict=True):
            try:
                outcome = "told" if _told(ask()) else "not told"
            except (Cut, OSError) as error:
                outcome = f"cut ({error})"
            found["right" if outcome == "told" else f"{outcome}: {victim}, {path}, stream {body['stream']}"] += 1


def giving_up() -> Counter[str]:
    """No restart is allowed, and the worker or the scheduler is killed: all are told, and the server ends at once."""
    found: Counter[str] = Counter()
    for victim in ("worker", "scheduler"):
        with Launched(*ACTORS, "--max-restarts", "0", "--max-num-seqs", "4") as server:
            begun = time.monotonic()
            _ask_all(server, victim, found)
            ended = server.process.wait(60.0)
            found["right" if ended else "exit status 0"] += 1
            found["right" if time.monotonic() - begun < 15.0 else "ended late"] += 1
    return found


def descriptors() -> Counter[str]:
    """1,200 idle connections at a limit of 1,024 open files, and a kill of a frontend in the midst of them."""
    found: Counter[str] = Counter()
    for options, kills in ((("--frontends", "4", "--renderers", "4", "--detokenizers", "4"), 0), (ACTORS, 3)):
        with Launched(*options, descriptors=1024) as server, contextlib.ExitStack() as stack:
            right = reference(server)
            for _ in range(1200):
                with contextlib.suppress(OSError):
                    stack.enter_context(Connection(server.address, 5.0))
            for _ in range(kills):
                server.kill("frontend")
                server.wait_ready()
            found["right" if server.ask("GET", "/health").status == 200 else "no health"] += 1
            found["right" if server.process.poll() is None else "the server ended"] += 1
            stack.close()
            server.wait_ready()
            for _ in range(60):
                judge(found, right, lambda s=server: s.ask("POST", CHAT, chat()))  # type: ignore[misc]
    return found


def all_connections() -> Counter[str]:
    """One client holds every connection: /health answers, and so does another client's request; its own is refused."""
    found: Counter[str] = Counter()
    with Launched("--max-connections", "64") as server, contextlib.ExitStack() as stack:
        right = reference(server)
        for _ in range(200):
            with contextlib.suppress(OSError):
                stack.enter_context(Connection(server.address, 5.0))
        for _ in range(20):
            found["right" if server.ask("GET", "/health").status == 200 else "no health"] += 1
        own = server.ask("POST", CHAT, chat())
        found["right" if own.status == 503 and own.json["error"]["message"] else f"its own request: {own.status}"] += 1
        time.sleep(2.0)  # they are idle only then, and may be closed for somebody else
        for _ in range(5):
            with Connection(server.address, source=OTHER) as other:
                judge(found, right, lambda c=other: c.ask(request("POST", CHAT, chat())))  # type: ignore[misc]
    return found


def keys() -> Counter[str]:
    """Two keys: what one has stored or asked is not there for the other, also after a frontend's death."""
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "keys"
        file.write_text("key-a\nkey-b\n")
        with Launched(*ACTORS, "--api-key-file", str(file)) as server:
            a, b = {"X_Api_Key": "key-a"}, {"X_Api_Key": "key-b", "Authorization": "Basic eDp5"}
            made = server.ask("POST", "/v1/responses", {"input": "Hello!", "max_output_tokens": 16}, **a)
            assert made.status == 200, made.body
            path = f"/v1/responses/{made.json['id']}"
            for turn in range(2):
                tries = [server.ask("GET", path, **b), server.ask("DELETE", path, **b)]
                tries.append(server.ask("POST", f"{path}/cancel", {}, **b))
                more = {"input": "Go on.", "previous_response_id": made.json["id"], "max_output_tokens": 4}
                tries.append(server.ask("POST", "/v1/responses", more, **b))
                for answer in tries:
                    found["right" if answer.status in (400, 404) else f"key b got {answer.status}"] += 1
                own = server.ask("GET", path, **a)
                found["right" if own.status == 200 else f"key a got {own.status}"] += 1
                if not turn:
                    server.kill("frontend")
                    server.wait_ready()
            body = chat(stream=False, temperature=1.0)
            first = server.ask("POST", CHAT, body, **a, Idempotency_Key="one")
            again = server.ask("POST", CHAT, body, **a, Idempotency_Key="one")
            other = server.ask("POST", CHAT, body, **b, Idempotency_Key="one")
            found["right" if first.json["id"] == again.json["id"] else "a's answer was not found again"] += 1
            found["right" if first.json["id"] != other.json["id"] else "b got a's answer"] += 1
    return found


def big_bodies() -> Counter[str]:
    """Prompts of megabytes: refused, and others are answered meanwhile by the one renderer."""
    found: Counter[str] = Counter()
    text = "word and more " * 250_000
    user = [{"role": "user", "content": text}]
    giants: list[tuple[str, dict[str, Any]]] = [
        ("/tokenize", {"prompt": text}),
        ("/v1/messages/count_tokens", {"model": MODEL, "messages": user}),
        ("/v1/responses/input_tokens", {"input": text}),
        (CHAT, chat(stream=False, messages=user, truncate_prompt_tokens=-1)),
        (CHAT, chat(stream=False, messages=user)),
    ]
    with Launched() as server, ThreadPoolExecutor(4) as pool:
        right = reference(server)
        for path, body in giants:
            begun = time.monotonic()
            giant = pool.submit(server.ask, "POST", path, body)
            judge(found, right, lambda: server.ask("POST", CHAT, chat(stream=False)))
            answer = giant.result()
            took = time.monotonic() - begun
            found["right" if answer.status in (400, 413) else f"{path}: {answer.status} after {took:.1f} s"] += 1
    return found


TRIALS: dict[str, Trial] = {
    trial.__name__: trial
    for trial in (expect_continue, sigterm, giving_up, descriptors, all_connections, keys, big_bodies)
}
