"""What /openapi.json says, against the running server: schemathesis makes requests that are as it says, and others.

No answer is undeclared, of another type or shape, or the server's fault; no actor dies of one; nothing is left running.
A request that is as the document says is answered, but for the rules that no schema can say (RULES).
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, seed, settings
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import FailureGroup
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from actorserve.http.generation.fields.unsupported import NOT_BUILT
from tests.support.selection import slow
from tests.support.server import WAIT_S, Server

CHECKS = [not_a_server_error, status_code_conformance, content_type_conformance, response_schema_conformance]
RULES = re.compile(
    "|".join(
        [
            rf"^({'|'.join(map(re.escape, NOT_BUILT))}): .* is not supported",  # other servers' fields, met by chance
            "The prompt is empty",  # how many tokens a text has, its model's tokenizer knows
            "maximum context length",
            "Token id .* out of vocabulary",
            "logit_bias maps token ids",  # a pattern does not compare numbers
            "are together longer than",
            "stream_options is only allowed when stream is true",
            "prompt_logprobs are not given with stream",
            "top_logprobs goes with logprobs: true",
            "logprob_token_ids goes with logprobs",
            "min_tokens .* must not be more than max_tokens",
            "min_tokens must be 0 with max_tokens 0",
            "(max_(completion_)?tokens|n_predict) must be (-1 or )?at least 1, not 0",  # without echo
            "repeat_penalty looks back on the whole text|^samplers: .* is none of",
            "repetition_detection.(min_pattern_size|min_count) must be at",
            "goes with use_beam_search|use_beam_search (does not go|cannot)|with use_beam_search",
            "best_of is a field of completions|best_of must be at least n|best_of cannot be streamed",
            "sequences are more than|prompts times n",
            "add_generation_prompt must be false",
            "continue_final_message",
            "Only one of .* can be given|structured_outputs takes one of|tool_choice needs tools|there is no tool",
            "how this model writes tool calls is not known|how this model marks its thinking is not known",
            "asks for something else; give either",
            "Last-Event-ID goes with|not the id of an event of this stream|Idempotency-Key is over and forgotten",
            "This Idempotency-Key was used",
            "^(response_format|structured_outputs|tool_choice|tools)",  # whether it can be compiled
            "^(guided_(json|regex|choice|grammar)|json_schema|regex|ebnf|grammar)",
            "Either prompt or messages|parse_special",
            "chat template|template",  # its own words on a conversation
            "nested too deep",
            "does not go with session_params|^session_params",
            "only an assistant's content has parts of type thinking",
            "function_call goes with functions|functions: .* asks for the same",
            "prompt_embeds: .* --enable-prompt-embeds",
            "random_seed: seed asks for another one|safe_prompt is not supported|prefix: only the last message",
            "no tokens for what stands between|suffix goes with|echo does not go with suffix",
        ]
    )
)
HELD = re.compile(r"^vllm:(?:num_requests_running|num_requests_waiting|kv_cache_usage_perc)\{.*\} (\S+)$", re.M)
OURS = ("/v1/chat/completions", "/v1/completions", "/tokenize", "/detokenize", "/v1/models/{model}")
UNSURE = re.compile(
    r"\{id\}|/v1/(messages|responses|realtime)|/api/|/v2/|/(v1/chat/completions/batch|completions?|infill|generate|apply-template|go_on|close_session|parse_function_call)$|generative_scoring$|render$|POST./lora-adapters$|/openapi.json"
)  # perhaps nothing drawn is what these can answer
ENDLESS = "/models/sse"  # whose answer nobody waits for
SHORT = 3  # tokens and choices of an answer
QUICK, MANY = 1, 100  # cases of one operation and mode; half of the time is drawing them
PARTS = 12  # that slow cases come in, each of every twelfth operation: all at once took over an hour


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    with Server("--threads", "1", "--max-num-seqs", "16") as made:
        answer = requests.post(f"{made.base_url}/tokenize", json={"prompt": "a"}, timeout=60)
        assert answer.json()["count"] == 1
        yield made


def ease(case: Any, odd: bool) -> None:
    """No long answers and not many at once; every other case is spared the rules that refuse most."""
    body = case.body
    if not isinstance(body, dict):
        return
    for name in ("max_tokens", "max_completion_tokens", "max_output_tokens", "min_tokens", "n", "best_of"):
        if isinstance(body.get(name), (int, float)) and (body[name] > SHORT or body[name] == -1):
            body[name] = SHORT
    name = "max_output_tokens" if "input" in body else "max_tokens"
    if body.get(name) is None and body.get("max_completion_tokens") is None:
        body[name] = SHORT
    if isinstance(body.get("sampling_params"), dict):
        body["sampling_params"] |= {"max_tokens": SHORT, "max_new_tokens": SHORT}
    if odd:
        case.headers.pop("Last-Event-ID", None)
        body.pop("best_of", None)
        body.pop("use_beam_search", None)
        body.pop("length_penalty", None)
        if body.get("stream") is not True:
            body.pop("stream_options", None)
        if body.get("prompt") in ("", [""], [[]]):
            body["prompt"] = "a"


def read_operations(server: Server) -> list[Any]:
    """Of /openapi.json, in its order."""
    schema = schemathesis.openapi.from_url(f"{server.base_url}/openapi.json")
    found = list(schema.get_all_operations())
    assert all(isinstance(one, Ok) for one in found), found
    return [one.ok() for one in found if isinstance(one, Ok) and one.ok().path != ENDLESS]


def run(operations: Sequence[Any], cases: int, number: int) -> Counter[tuple[str, str, int]]:
    """These in both modes; how often each answered with which status. What fails is named; others go on."""
    counted: Counter[tuple[str, str, int]] = Counter()
    failures: list[BaseException] = []
    with requests.Session() as session:
        for operation in operations:
            takes = bool(operation.body) or operation.path == "/v1/models/{model}"
            for mode in GenerationMode if takes else (GenerationMode.POSITIVE,):
                # the first is the least that can be said, the others are drawn
                more = 2 if operation.path in OURS else 0
                try:
                    try_operation(operation, mode, cases + more, number, session, counted)
                except (Exception, FailureGroup) as error:
                    error.add_note(f"This was {operation.label}, {mode.value} cases.")
                    failures.append(error)
    if failures:
        raise BaseExceptionGroup("operations that are not as /openapi.json says", failures)
    return counted


def try_operation(
    operation: Any, mode: GenerationMode, cases: int, number: int, session: Any, counted: Counter[tuple[str, str, int]]
) -> None:
    @settings(
        max_examples=cases,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=operation.as_strategy(generation_mode=mode))
    def each(case: Any) -> None:
        # what is wrong in a negative case may be nothing that is refused
        if re.search(r"/v1/(?!realtime)|/api/|^/generate$", operation.path):
            ease(case, mode is GenerationMode.POSITIVE and counted.total() % 2 == 1)
        response = case.call(session=session, timeout=60)
        counted[operation.label, mode.value, response.status_code] += 1
        case.validate_response(response, checks=CHECKS)
        if mode is GenerationMode.POSITIVE and response.status_code >= 400:
            if operation.path not in OURS:
                return
            error = response.json()["error"]
            message = f"{error.get('param')}: {error['message']}"
            known = RULES.search(message)
            assert known, f"{operation.path} refuses what its schema allows: {message}\n{case.body}"

    # --hypothesis-profile=default draws others each time
    (seed(number)(each) if settings().derandomize else each)()


def check_unharmed(server: Server, pids: dict[str, int]) -> None:
    """The same actors, with nothing to do and nothing held."""
    assert server.pids() == pids
    deadline = time.monotonic() + WAIT_S
    while any(figures := held(server)):
        assert time.monotonic() < deadline, f"still held: {figures}"
    with pytest.raises(AssertionError, match="no 'died"):
        server.wait_for("died|hangs", timeout=0)


def held(server: Server) -> list[float]:
    """Sequences that run or wait, the share of KV blocks that is held, requests that are answered."""
    text = requests.get(f"{server.base_url}/metrics", timeout=60).text
    figures = [float(figure) for figure in HELD.findall(text)]
    assert len(figures) == 3, text
    return [*figures, requests.get(f"{server.base_url}/load", timeout=60).json()["server_load"]]


@pytest.mark.parametrize(
    ("cases", "part", "parts"), [(QUICK, 0, 1), *slow(*((MANY, part, PARTS) for part in range(PARTS)))]
)
def test_what_is_said_is_done(server: Server, cases: int, part: int, parts: int) -> None:
    pids = server.pids()
    operations = read_operations(server)[part::parts]
    counted = run(operations, cases, cases)
    check_unharmed(server, pids)
    print(f"{counted.total()} cases")
    for (label, mode, status), count in sorted(counted.items()):
        print(f"{label:40} {mode:10} {status} {count}")
    labels = {operation.label for operation in operations}
    assert labels and labels == {label for label, _, _ in counted}
    answered = {label for label, _, status in counted if status == 200}
    sure = {label for label in labels if not UNSURE.search(label)}
    # few cases may meet rules alone
    assert answered >= sure if cases == MANY else len(answered & sure) > len(sure) // 2
