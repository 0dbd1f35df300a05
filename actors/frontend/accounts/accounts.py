"""The keys of --key-file as a frontend knows them: what the supervisor has published, and what each has used."""

from __future__ import annotations

from actorserve.http.accounts import Accounts, Usage
from actorserve.shm.accounts.book import KeyBook
from actorserve.shm.accounts.layout import Total
from actorserve.shm.accounts.ledger import Ledger

from ...accounts.account import BOOK_BYTES, Account, digest_of, unpack
from ...runtime.process import Context
from .quotas import Quotas, second_now

REASONS = {
    "requests": Total.REFUSED_REQUESTS,
    "tokens": Total.REFUSED_TOKENS,
    "concurrent": Total.REFUSED_CONCURRENT,
    "budget": Total.REFUSED_BUDGET,
}
LIMITS = ("requests_per_minute", "tokens_per_minute", "concurrent", "budget", "max_tokens")


class FrontendAccounts(Accounts):
    """Of one frontend."""

    def __init__(self, context: Context) -> None:
        places = context.system.accounts
        self.enabled = places is not None
        self.quotas: Quotas | None = None
        self._version = 0
        self._accounts: list[Account] = []
        self._by_digest: dict[bytes, Account] = {}
        if places is None:
            return
        self._book = KeyBook(context.segment, places.book, BOOK_BYTES)
        self.quotas = Quotas(context, places.ledger)
        self._ledger: Ledger = self.quotas.ledger

    def find(self, key: bytes) -> Account | None:
        if not self.enabled:
            return None
        self._look()
        return self._by_digest.get(digest_of(key))

    def named(self, name: str) -> Account | None:
        if not self.enabled:
            return None
        self._look()
        return next((account for account in self._accounts if account.name == name and account.digest), None)

    def _look(self) -> None:
        """Has the file changed?"""
        if self._book.version == self._version:
            return
        self._version, text = self._book.read()
        self._accounts = unpack(text)
        self._by_digest = {account.digest: account for account in self._accounts if account.digest}

    def usage(self, name: str | None = None) -> list[Usage]:
        if not self.enabled:
            return []
        self._look()
        return [self._usage(account) for account in self._accounts if name is None or account.name == name]

    def _usage(self, account: Account) -> Usage:
        ledger, now = self._ledger, second_now()
        running = ledger.running(account.entry)
        totals = ledger.totals(account.entry)
        last = [sum(amount for _, amount in ledger.window(account.entry, now, tokens)) for tokens in (False, True)]
        return Usage(
            account.name,
            totals[Total.REQUESTS],
            totals[Total.PROMPT],
            totals[Total.COMPLETION],
            len({line.admission for _, line in running}),
            sum(line.reserved for _, line in running),
            last[0],
            last[1],
            {reason: totals[total] for reason, total in REASONS.items()},
            {name: limit for name in LIMITS if (limit := getattr(account, name)) is not None},
        )
