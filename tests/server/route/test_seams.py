"""Streams cut behind a piece and gone on with: what the client has in the end is what the whole stream was."""

from __future__ import annotations

import json
import os
import re
import signal
from copy import deepcopy
from typing import Any

import pytest

from actorserve.actors.route.trails.trail import Trail
from tests.support.client import http_client
from tests.support.server import Server
from tests.support.streams import pieces as streams
from tests.support.streams.cases import ASKED, CASES, CHAT, CITY, MESSAGES, ONCE, RESPONSES, TEXT, TOKENS, WITH_USAGE
from tests.support.streams.pieces import Pieces, answer_of, post

RESPONSES_TOOL = {"type": "function", "name": "look_up", "parameters": CITY}
QUICK = ["three choices", "two prompts", "penalties", "stop strings", "chat logprobs", "schema", "required tool"]
FEW = 2  # seams of each case that are tried in a quick run


def seams_of(path: str, fields: dict[str, Any], server: Server, most: int) -> int:
    """With usage in the stream, where it is told on demand."""
    options = {"stream_options": WITH_USAGE} if path in (CHAT, TEXT) else {}
    return streams.seams_of(server, path, {**fields, **options}, most)


@pytest.mark.parametrize("name", QUICK)
def test_a_stream_goes_on_at_its_token(demo_server: Server, name: str) -> None:
    seams_of(*CASES[name], demo_server, FEW)


@pytest.mark.slow
def test_so_it_does_behind_each_piece(demo_server: Server) -> None:
    """How many pieces there are, a busy machine decides: several tokens may be one."""
    seams = {name: seams_of(*case, demo_server, 1000) for name, case in CASES.items()}
    assert min(seams.values()) > 2, seams


def test_it_goes_on_again_and_again(demo_server: Server) -> None:
    """Each server gives three pieces and is gone."""
    path, fields = CASES["three choices"]
    body = json.dumps({**fields, "stream": True}).encode()
    first = Pieces(post(demo_server, path, body))
    wanted, _ = first.up_to(-1)
    given, trail = first.up_to(3)
    while not trail.closed:
        more = Pieces(post(demo_server, "/go_on", trail.go_on(path, body, "again")))
        some, trail = more.up_to(min(3, len(more)), trail)
        given += some
    assert answer_of(given) == answer_of(wanted)


def test_what_its_client_goes_on_with_behind_an_event_goes_on_elsewhere_too(demo_server: Server) -> None:
    """Its trail tells all tokens, and until it has told them nobody begins anew."""
    path, fields = CASES["three choices"]
    body, key = json.dumps({**fields, "stream": True}).encode(), {"Idempotency-Key": "a stream with seams"}
    whole, _ = Pieces(post(demo_server, path, body, key)).up_to(-1)
    events, wanted, seams = whole.split(b"\n\n"), answer_of(whole), 0
    for count in (2, len(events) // 2, len(events) - 3, len(events) - 2):
        had = b"\n\n".join(events[:count]) + b"\n\n"
        last = re.findall(rb"^id: (.*)$", had, re.MULTILINE)[-1].decode()
        pieces = Pieces(post(demo_server, path, body, {**key, "Last-Event-ID": last}))
        for cut in range(len(pieces) + 1):
            before, trail = pieces.up_to(cut, Trail(pieces.origin, resumed=True))
            if trail.is_over or trail.closed:
                continue
            behind, _ = Pieces(post(demo_server, "/go_on", trail.go_on(path, body, "cut"))).up_to(-1, trail)
            assert answer_of(had + before + behind) == wanted, (count, cut)
            seams += 1
        assert trail.closed
    assert seams > 3


@pytest.mark.parametrize(
    ("path", "fields"),
    [
        (MESSAGES, {**ASKED, "temperature": 1, "model": "actorserve-demo"}),
        (TOKENS, {"token_ids": [5, 6, 7], "sampling_params": {"max_tokens": 12, "ignore_eos": True}}),
    ],
)
def test_other_dialects_go_on_too(demo_server: Server, path: str, fields: dict[str, Any]) -> None:
    body = json.dumps({**fields, "stream": True}).encode()
    pieces = Pieces(post(demo_server, path, body))
    whole, _ = pieces.up_to(-1)
    for cut in (0, 1, 4, len(pieces) - 1):
        before, trail = pieces.up_to(cut)
        behind, _ = Pieces(post(demo_server, "/go_on", trail.go_on(path, body, "cut"))).up_to(-1, trail)
        assert said(before + behind) == said(whole), cut


def events_of(stream: bytes) -> list[dict[str, Any]]:
    """A response's, with texts that came in parts joined, and without what tells when or where it was made."""
    found: list[dict[str, Any]] = []
    events = [json.loads(line[6:]) for line in stream.decode().split("\n") if line.startswith("data: ")]
    assert [event.pop("sequence_number") for event in events] == list(range(len(events)))
    for event in events:
        if "delta" in event and found and found[-1]["type"] == event["type"]:
            found[-1]["delta"] += event["delta"]
        else:
            found.append(event)
    for event in found:
        if "response" in event:
            event["response"]["completed_at"] = None
            (event["response"]["usage"] or {}).pop("input_tokens_details", None)
    return found


@pytest.mark.parametrize(
    "fields",
    [
        {"temperature": 1},
        {"temperature": 1.2, "tools": [RESPONSES_TOOL], "tool_choice": "required"},
        {"temperature": 1, "input": [{"role": "user", "content": "Hello!"}, {"type": "compaction_trigger"}]},
    ],
)
def test_a_response_goes_on_too_and_is_kept_where_it_ends(demo_server: Server, fields: dict[str, Any]) -> None:
    """Its events' numbers go on; its last ones say all of its text."""
    asked = {"input": "How do I set an API key?", "max_output_tokens": 40, **fields, "stream": True}
    body = json.dumps(asked).encode()
    pieces = Pieces(post(demo_server, RESPONSES, body))
    whole, _ = pieces.up_to(-1)
    wanted = events_of(whole)
    for cut in (0, 1, len(pieces) // 2, len(pieces) - 1):
        before, trail = pieces.up_to(cut)
        behind, trail = Pieces(post(demo_server, "/go_on", trail.go_on(RESPONSES, body, "cut"))).up_to(-1, trail)
        assert events_of(before + behind) == wanted, cut
        assert trail.closed
    ended = wanted[-1]["response"]
    before, trail = pieces.up_to(2)
    trail.origin = f"{trail.origin.rpartition('.')[0]}.ff"  # a frontend that is missing here
    behind, _ = Pieces(post(demo_server, "/go_on", trail.go_on(RESPONSES, body, "cut"))).up_to(-1, trail)
    other = events_of(before + behind)[-1]["response"]
    assert other["id"] == f"resp_ff{ended['id'][7:]}"
    with http_client(demo_server) as client:
        assert client.get(f"{RESPONSES}/{ended['id']}").json()["output"] == ended["output"]
        assert client.get(f"{RESPONSES}/{other['id']}").status_code == 404


def said(stream: bytes) -> tuple[list[str], str, list[int]]:
    """The kinds of events in their order, and their texts and tokens, wherever these were cut."""
    kinds: list[str] = []
    text = ""
    tokens: list[int] = []
    for line in stream.decode().split("\n"):
        if line.startswith("data: {"):
            event = json.loads(line[6:])
            kind = event.get("type", "")
            text += event.get("delta", {}).get("text", "") if kind == "content_block_delta" else ""
            tokens += [token for one in event.get("choices", []) for token in one["token_ids"]]
            if kind != (kinds or [""])[-1]:
                kinds.append(kind)
    return kinds, text, tokens


def test_draws_follow_from_what_every_life_of_an_answer_knows(demo_server: Server) -> None:
    """A successor of the frontend, or whoever finds the answer by its key, says the same origin."""
    for seed in (None, -3):
        asked = {**ONCE, "stream": True, "seed": seed, "max_tokens": 1}
        written = post(demo_server, TEXT, json.dumps(asked).encode()).headers["X-Actorserve-Origin"].split(".")
        assert int(written[2]) == (int(written[0], 16) >> 1 if seed is None else seed)


@pytest.mark.slow
def test_a_response_goes_on_through_deaths_of_frontends() -> None:
    """Whoever goes on has not counted the tokens that were told before, and tells all of them."""
    body = json.dumps({"input": "Hello", "temperature": 1, "max_output_tokens": 700, "stream": True}).encode()
    with Server("--threads", "1", "--max-restarts", "1000") as server:
        first = Pieces(post(server, RESPONSES, body))
        wanted, _ = first.up_to(-1)
        given, trail = first.up_to(4)
        for _ in range(2):
            response = post(server, "/go_on", trail.go_on(RESPONSES, body, "lives"))
            begin = response.read(4000)
            os.kill(server.pids()["frontend-0"], signal.SIGKILL)
            rest = Pieces(response, begin)
            behind, after = rest.up_to(-1, deepcopy(trail))
            assert events_of(given + behind) == events_of(wanted) and after.closed
            some, trail = rest.up_to(len(rest) // 2, trail)
            given += some


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--data-parallel-size", "2")])
def test_it_goes_on_through_deaths_of_frontends_and_workers(options: tuple[str, ...]) -> None:
    """In the server that goes on with it, which tells a trail that is gone on with once more."""
    path, fields = CASES["penalties"]
    body = json.dumps({**fields, "n": 2, "max_tokens": 700, "stream": True, "stream_options": WITH_USAGE}).encode()
    with Server("--threads", "1", "--frontends", "2", "--max-restarts", "1000", *options) as server:
        first = Pieces(post(server, path, body))
        wanted, _ = first.up_to(-1)
        given, trail = first.up_to(4)
        for kinds in (("frontend-0", "frontend-1"), ("worker", "scheduler", "frontend-0", "renderer-0")):
            response = post(server, "/go_on", trail.go_on(path, body, "lives"))
            begin = response.read(4000)
            for name, pid in server.actors().items():
                if name.partition("@")[0] in kinds:
                    os.kill(pid, signal.SIGKILL)
            rest = Pieces(response, begin)
            behind, after = rest.up_to(-1, deepcopy(trail))
            assert answer_of(given + behind) == answer_of(wanted) and after.closed
            some, trail = rest.up_to(30, trail)
            given += some


# --- what cannot be ------------------------------------------------------------------------------------------------

ORIGIN = "00000000000000aa.6553f100.7.1.fp_x"  # a seed, a time, another seed, one choice


def refusal(server: Server, path: str = TEXT, body: Any = None, **fields: Any) -> tuple[int, str, str]:
    """(status, the field that is wrong, the message)."""
    body = {**ONCE, "stream": True} if body is None else body
    asked = {"path": path, "body": json.dumps(body), "origin": ORIGIN, "choices": [{"tokens": [5], "characters": 2}],
             "begun": True}  # fmt: skip
    response = post(server, "/go_on", json.dumps({**asked, **fields}).encode())
    told = json.loads(response.read())["error"]
    return response.status, told["param"], told["message"]


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"path": "/v1/models"}, "path"),
        ({"origin": "x"}, "origin"),
        ({"origin": ORIGIN + "-0ther"}, "origin"),
        ({"origin": ORIGIN.replace(".7.", f".{1 << 64}.")}, "origin"),
        ({"path": RESPONSES, "body": {"input": "x", "stream": True, "background": True}}, "body"),
        ({"choices": []}, "choices"),
        ({"choices": [{"tokens": [5]}] * 2}, "choices"),
        ({"choices": [{"tokens": [1 << 30]}]}, "choices[0].tokens"),
        ({"choices": [{"tokens": [-1]}]}, "choices[0].tokens[0]"),
        ({"choices": [{"tokens": [5] * 41}]}, "choices"),
        ({"choices": [{"tokens": [5] * 100_000}]}, "choices[0].tokens"),
        ({"choices": [{"characters": 3}]}, "choices[0].tokens"),
        ({"choices": [{"tokens": [5], "characters": -1}]}, "choices[0].characters"),
        ({"choices": [{"tokens": [5], "text": "x"}]}, "choices[0].text"),
        ({"begun": False}, "begun"),
        ({"body": ONCE}, "body"),
        ({"body": {**ONCE, "stream": True, "max_tokens": -2}}, "max_tokens"),
        ({"body": {**ONCE, "stream": True, "structured_outputs": {"regex": "[0-9]{3}"}}}, "choices"),
    ],
)
def test_what_cannot_be_is_refused_by_name(demo_server: Server, fields: dict[str, Any], param: str) -> None:
    status, found, message = refusal(demo_server, **fields)
    assert (status, found) == (400, param), message
    assert param.partition("[")[0] in message


def test_without_asking_a_stream_says_nothing_of_it(demo_server: Server) -> None:
    connection_body = json.dumps({**ONCE, "stream": True}).encode()
    response = post(demo_server, TEXT, connection_body)
    assert response.headers["X-Actorserve-Origin"] and b":t " in response.read()
    whole = post(demo_server, TEXT, json.dumps(ONCE).encode())
    assert "X-Actorserve-Origin" not in whole.headers and b":t " not in whole.read()


def test_a_trail_that_cannot_be_read_is_told() -> None:
    from actorserve.actors.route.trails.trail import TrailError

    with pytest.raises(TrailError):
        Trail("x")
    for data in (b":t 7 0-0 1\n\n", b":t x\n\n", b":t 0 0-0\n\n"):
        with pytest.raises(TrailError):
            Trail(ORIGIN).feed(data)
