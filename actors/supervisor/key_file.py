"""The file of --key-file, read at the start and again when it changes or at SIGHUP; frontends find what it says in
shared memory (shm/accounts/book.py), whose one writer this is.

A file that cannot be used changes nothing: what was read before holds, and a line of the log says what is wrong.
"""

from __future__ import annotations

import logging
import os

from actorserve.shm.accounts.book import KeyBook
from actorserve.shm.segment import Segment

from ..accounts.account import BOOK_BYTES, Account, pack
from ..accounts.key_file import KeyFileError, as_accounts, read_key_file
from ..options.config import Config, ConfigError
from ..protocol.topology import System

log = logging.getLogger("keys")
State = tuple[int, int, int, int]


class PublishedKeys:
    """What frontends go by."""

    def __init__(self, system: System, segment: Segment) -> None:
        self._config: Config = system.config
        self._book: KeyBook | None = None
        self._accounts: list[Account] = []
        self._seen: State | None = None
        if system.accounts is None:
            return
        self._book = KeyBook(segment, system.accounts.book, BOOK_BYTES)
        self._seen = self._state()
        try:
            self._publish()
        except KeyFileError as error:
            raise ConfigError(f"--key-file: {error}") from None

    @property
    def is_there(self) -> bool:
        return self._book is not None

    def look(self) -> None:
        """Read it again if it has changed since the last time."""
        if self._book is not None and (state := self._state()) != self._seen:
            self._seen = state
            self.read_again()

    def read_again(self) -> None:
        """Whether it has changed or not."""
        try:
            self._publish()
        except KeyFileError as error:
            log.error("--key-file: %s; the keys that were read before hold", error)
        else:
            there = sum(bool(account.digest) for account in self._accounts)
            log.info("--key-file was read again: %d keys", there)

    def _publish(self) -> None:
        path, admin = self._config.key_file, self._config.admin_api_key
        assert path is not None and self._book is not None
        keys = read_key_file(path, self._config.api_key + ([admin] if admin else []))
        self._accounts = as_accounts(keys, self._accounts, path)
        self._book.publish(pack(self._accounts))

    def _state(self) -> State | None:
        """By which a change is seen; None: the file is not there."""
        try:
            found = os.stat(str(self._config.key_file))
        except OSError:
            return None
        return found.st_mtime_ns, found.st_size, found.st_ino, found.st_ctime_ns
