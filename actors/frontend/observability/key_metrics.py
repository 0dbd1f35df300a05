"""What clients' keys have used, for /metrics: one label, the key's name, of which there are so many at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from actorserve.http.accounts import Usage
from actorserve.http.metrics import Family, Labels

MOST_SHOWN = 256  # names; all others together are OTHERS
OTHERS = "others"


def of_keys(usage: Sequence[Usage]) -> Iterator[Family]:
    """The first that stood in the file each by itself."""
    requests = Family("counter", "actorserve:key_requests", "Requests of a key that were answered")
    prompt = Family("counter", "actorserve:key_prompt_tokens", "Tokens of its prompts")
    generated = Family("counter", "actorserve:key_generation_tokens", "Tokens of its answers")
    running = Family("gauge", "actorserve:key_requests_running", "Its requests that run now")
    refused = Family("counter", "actorserve:key_requests_refused", "Its requests that met a limit")
    limits = Family("gauge", "actorserve:key_limit", "What it may use at most, by the name in the file")
    for name, some in _named(usage):
        labels: Labels = {"key": name}
        requests.samples.append((labels, sum(one.requests for one in some)))
        prompt.samples.append((labels, sum(one.prompt_tokens for one in some)))
        generated.samples.append((labels, sum(one.completion_tokens for one in some)))
        running.samples.append((labels, sum(one.running for one in some)))
        for reason in some[0].refused:
            refused.samples.append(({**labels, "limit": reason}, sum(one.refused[reason] for one in some)))
        if name != OTHERS:
            limits.samples.extend(({**labels, "limit": limit}, most) for limit, most in some[0].limits.items())
    yield from (requests, prompt, generated, running, refused, limits)


def _named(usage: Sequence[Usage]) -> Iterator[tuple[str, Sequence[Usage]]]:
    for one in usage[:MOST_SHOWN]:
        yield one.name, [one]
    if len(usage) > MOST_SHOWN:
        yield OTHERS, usage[MOST_SHOWN:]
