"""Certificates that are renewed while the server runs: connections that are made from then on have the new ones.

Files are looked at once a second; those that have changed are read when they have stayed the same for one look more,
since whoever renews them writes one after the other. What cannot be used changes nothing, and a line of the log says
why. What runs keeps its session.
"""

from __future__ import annotations

import logging
import os
import ssl
import time
from collections.abc import Callable

from ..config import Config, ConfigError
from .tls import make_context

LOOK_S = 1.0
PATIENCE_S = 30.0  # before a frontend's successor gives them up
log = logging.getLogger("tls")
State = list[tuple[int, int, int] | None]


def first_context(config: Config, is_first_life: bool) -> ssl.SSLContext | None:
    """What a frontend begins with. A successor may be born while somebody writes the files: it waits for what can be
    used, since the server would end with it. ConfigError at the start of the server, and when that takes too long.
    """
    deadline = time.monotonic() + (0.0 if is_first_life else PATIENCE_S)
    while True:
        try:
            return make_context(config)
        except ConfigError as error:
            if time.monotonic() >= deadline:
                raise
            log.error("%s; they are looked at again", error)
            time.sleep(LOOK_S)  # a file gives no sign when it is whole


class Certificates:
    """Those of one frontend, or relay. `use` is given each new context."""

    def __init__(self, config: Config, use: Callable[[ssl.SSLContext], None], say: bool) -> None:
        """`say`: this one of all frontends tells the log what is well."""
        self._config, self._use, self._say = config, use, say
        names = (config.ssl_certfile, config.ssl_keyfile, config.ssl_ca_certs)
        self._files = [name for name in names if name is not None]
        self._used = self._seen = self._state()
        self._looked_at = 0.0

    def look(self, now: float) -> None:
        """Use what has changed."""
        if now - self._looked_at < LOOK_S:
            return
        self._looked_at = now
        before, self._seen = self._seen, self._state()
        if self._seen == self._used or self._seen != before:
            return
        self._used = self._seen
        try:
            context = make_context(self._config)
        except ConfigError as error:
            log.error("%s; the certificates that were read before are used on", error)
            return
        assert context is not None
        self._use(context)
        if self._say:
            log.info("certificates were read again")

    def _state(self) -> State:
        return [_state_of(name) for name in self._files]


def _state_of(name: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(name)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
