"""Letting requests of clients' keys in, and charging them: what this frontend writes of the ledger.

A key with limits is asked for by `turn` before a request is let in: nobody else, in no process, lets one of its
requests in meanwhile, so that what is added up holds until it is written. What is added up of running sequences is read
before what has been charged: one that ends in between counts twice, and never not at all.

    requests a minute      counted when a request is let in
    concurrent requests    those with a sequence that has not ended
    tokens a minute        those charged, and what running sequences have by now; at the limit nothing is let in
    budget                 each sequence reserves what it can use at most: the model's length, or a share of what is
                           left, once its prompt is known that and its limit. No answer is longer than what is reserved
                           for it, so that the budget is never exceeded
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager

import msgspec

from actorserve.http.errors import ApiError, overloaded
from actorserve.http.generation.job import Job
from actorserve.shm.accounts.layout import WINDOW, Flag, Total
from actorserve.shm.accounts.ledger import LedgerWriter, Line

from ...accounts.account import MOST_ACCOUNTS, Account
from ...protocol.messages import FAILURES, NO_QUOTA, Delta
from ...protocol.request import Generation
from ...runtime.process import Context
from .limits import MinuteLimit

FIRST_TRY_S, LAST_TRY_S = 0.0005, 0.02  # a lock that somebody else has gives no sign when it is free
TURN_S = 15.0  # who holds it, and hangs, is killed before


def second_now() -> int:
    """Of the ledger; none is 0, nor is less than its window."""
    return int(time.monotonic()) + WINDOW


class Quotas:
    """Of one frontend."""

    def __init__(self, context: Context, offset: int) -> None:
        system, own = context.system, context.spec.index
        sizes = context.config.frontends, MOST_ACCOUNTS, system.slots
        place = own, system.first_slot(own), system.slots_per_frontend
        self.ledger = LedgerWriter(context.segment, offset, *sizes, place)
        self._table = context.table
        self._models = [served.info for served in system.models]
        self._admitted: Line | None = None  # as the slots of the request that is let in have it

    # --- letting in ----------------------------------------------------------------------------------------------

    @asynccontextmanager
    async def turn(self, account: Account) -> AsyncIterator[None]:
        """Requests of this key are let in by nobody else. What stands within must not await."""
        if not account.is_limited:
            yield
            return
        deadline, wait_s = time.monotonic() + TURN_S, FIRST_TRY_S
        while not self.ledger.lock(account.entry):
            if time.monotonic() > deadline:
                raise overloaded("Too many requests of this key come at once. Try again soon.")
            await asyncio.sleep(wait_s)
            wait_s = min(2 * wait_s, LAST_TRY_S)
        try:
            yield
        finally:
            self.ledger.unlock(account.entry)

    def admit(self, job: Job, account: Account) -> None:
        """The request is counted, and its slots are about to be opened; ApiError 429 if a limit is met."""
        now, entry, ledger = second_now(), account.entry, self.ledger
        running = self._running(account)
        requests, tokens = self._minute(account, running)
        job.headers = self._headers(requests, tokens, 0)
        self._check(account, running, requests, tokens)
        share = self._share(account, running, len(job.choices), self._models[job.model].max_model_len)
        job.headers = self._headers(requests, tokens, 1)
        job.rendering = {**job.rendering, "most_tokens": share, "most_generated": account.max_tokens}
        if account.priority is not None:
            job.params = [_with_priority(params, account) for params in job.params]
        self._admitted = Line(entry, Flag.HELD, ledger.admit(entry, now), now, share or 0)

    def check(self, account: Account) -> tuple[dict[str, str], ApiError | None]:
        """What is left, and the 429 with which the least request of this key would be refused now; nothing is counted
        yet.
        """
        running = self._running(account)
        minute = self._minute(account, running)
        headers = self._headers(*minute, 0)
        try:
            self._check(account, running, *minute)
            self._share(account, running, 1, 1)
        except ApiError as error:
            return headers, error
        return headers, None

    def _running(self, account: Account) -> list[tuple[int, Line]]:
        return self.ledger.running(account.entry) if account.is_limited else []

    def _check(
        self,
        account: Account,
        running: list[tuple[int, Line]],
        requests: MinuteLimit | None,
        tokens: MinuteLimit | None,
    ) -> None:
        if requests is not None and not requests.left:
            self._refuse(account, Total.REFUSED_REQUESTS, "requests a minute", requests.limit, requests.wait_s())
        if tokens is not None and not tokens.left:
            self._refuse(account, Total.REFUSED_TOKENS, "tokens a minute", tokens.limit, tokens.wait_s())
        if account.concurrent is not None and len({line.admission for _, line in running}) >= account.concurrent:
            self._refuse(account, Total.REFUSED_CONCURRENT, "requests at once", account.concurrent, 1)

    def _minute(
        self, account: Account, running: list[tuple[int, Line]]
    ) -> tuple[MinuteLimit | None, MinuteLimit | None]:
        """Requests and tokens, where they are limited."""
        exact, now, entry = time.monotonic() + WINDOW, second_now(), account.entry
        requests = tokens = None
        if account.requests_per_minute is not None:
            requests = MinuteLimit(account.requests_per_minute, self.ledger.window(entry, now), exact)
        if account.tokens_per_minute is not None:
            used = sum(self._used_by(ref, line) for ref, line in running)
            tokens = MinuteLimit(account.tokens_per_minute, self.ledger.window(entry, now, True), exact, used)
        return requests, tokens

    def _used_by(self, ref: int, line: Line) -> int:
        """Tokens that a running sequence has by now."""
        prompt = self._table.prompt_length(ref) or 0
        own = prompt if Flag.PAYS_PROMPT in line.flags else 0
        return own + self._generated_here(ref, self._table.generated(ref))

    def _generated_here(self, ref: int, tokens: int) -> int:
        """Without those that another server has generated, which has charged them."""
        pools = self._models[self._table.model(ref)].pooling is not None
        return 0 if pools else max(0, tokens - self._table.given(ref))

    def _headers(self, requests: MinuteLimit | None, tokens: MinuteLimit | None, taken: int) -> dict[str, str]:
        return {
            **(requests.headers("requests", taken) if requests is not None else {}),
            **(tokens.headers("tokens") if tokens is not None else {}),
        }

    def _share(self, account: Account, running: list[tuple[int, Line]], sequences: int, longest: int) -> int | None:
        """Tokens that each sequence of a request may have of the budget, its prompt among them. `longest`: that its
        model takes.
        """
        if account.budget is None:
            return None
        totals = self.ledger.totals(account.entry)
        left = account.budget - totals[Total.PROMPT] - totals[Total.COMPLETION]
        reserved = sum(line.reserved for _, line in running)
        if left < 2 * sequences:
            self._refuse(account, Total.REFUSED_BUDGET, "tokens in all", account.budget, None)
        share = min(longest, left // sequences)
        if share * sequences > left - reserved:
            self._refuse(account, Total.REFUSED_BUDGET, "tokens in all, what runs included", account.budget, 1)
        return share

    def _refuse(self, account: Account, why: Total, what: str, limit: int, wait_s: int | None) -> None:
        self.ledger.refuse(account.entry, why)
        code = NO_QUOTA if wait_s is None else "rate_limit_exceeded"
        again = "" if wait_s is None else f" Try again in {wait_s} s."
        raise ApiError(429, f"This key, {account.name}, may have {limit} {what}.{again}", None, code, wait_s)

    def refused_by_renderer(self, jobs: Iterable[Job]) -> None:
        """Their prompts are longer than what is left of the budget, which is known once they are tokens. A request is
        refused once, however many prompts it has.
        """
        for job in jobs:
            if job.account is not None and not job.done.done():
                self.ledger.refuse(job.account.entry, Total.REFUSED_BUDGET)

    def hold(self, ref: int, index: int, width: int) -> None:
        """A slot was opened for this choice of the request."""
        line = self._admitted
        assert line is not None
        flags = line.flags | (Flag(0) if index else Flag.PAYS_REQUEST)
        if index % width == 0:
            flags |= Flag.PAYS_PROMPT
        self.ledger.hold(ref, line._replace(flags=flags))

    def opened(self, all_of_them: bool) -> None:
        """The request's slots are open; or they are not, and it is not counted."""
        self._admitted = None
        if all_of_them:
            self.ledger.opened()
        else:
            self.ledger.withdraw()

    # --- charging ------------------------------------------------------------------------------------------------

    def rendered(self, ref: int) -> None:
        """Its prompt and its limit are known: no more need be reserved."""
        line, prompt = self.ledger.line(ref), self._table.prompt_length(ref)
        if line is not None and line.reserved and prompt is not None:
            own = prompt if Flag.PAYS_PROMPT in line.flags else 0
            self.ledger.reserve(ref, min(line.reserved, own + self._table.limit(ref)))

    def ended(self, delta: Delta, prompt: int) -> None:
        """A sequence has ended so; `prompt`: tokens that its readers are told of, if there are any."""
        if delta.finish in FAILURES:
            self.ledger.drop(delta.ref, second_now())
            return
        own = prompt or self._table.prompt_length(delta.ref) or 0
        self.ledger.charge(delta.ref, own, self._generated_here(delta.ref, delta.tokens), second_now())

    def closed(self, ref: int, is_orphan: bool) -> None:
        """The slot is free. An orphan that nobody went on with was for nobody; its request is read again, or its client
        had gone.
        """
        if is_orphan or not self._table.finish(ref):
            self.ledger.drop(ref, second_now(), is_orphan)
        else:
            own = self._table.prompt_length(ref) or 0
            self.ledger.charge(ref, own, self._generated_here(ref, self._table.text(ref)), second_now())

    def charge_alone(self, account: Account, prompt: int, completion: int) -> None:
        """Of a request whose sequences were not those of its answer."""
        self.ledger.charge_alone(account.entry, prompt, completion, second_now())


def _with_priority(params: bytes, account: Account) -> bytes:
    given = msgspec.msgpack.decode(params, type=Generation)
    return msgspec.msgpack.encode(msgspec.structs.replace(given, priority=account.priority_of(given.priority)))
