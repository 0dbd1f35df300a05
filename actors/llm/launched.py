"""An LLM in each process of an external launcher (torchrun), with one set of actors: all are given what the first is.

The first process (RANK 0) has the actors, all workers among them. In each, the script makes the same calls in the same
order, as it must for vLLM; the first one's are answered, and what they return or raise is told to the others, who
compute nothing. They are on one machine, of one user: the socket between them takes no one else's connection, which
the kernel vouches for. When the first has died the others raise EngineDead; nobody waits for another that has.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import pickle
import select
import socket
import struct
import time
from collections.abc import Callable, Mapping
from functools import wraps
from typing import Any

from ..options.config import ConfigError
from ..options.launcher import LAUNCHED, OPTION, Place, place_of
from .link import EngineDead

CALLS = (
    *("get_default_sampling_params", "get_tokenizer", "generate", "chat", "enqueue", "wait_for_completion"),
    *("enqueue_chat", "beam_search", "encode", "embed"),
    *(
        "classify",
        "score",
        "reward",
        "sleep",
        "wake_up",
        "is_sleeping",
        "reset_prefix_cache",
        "reset_mm_cache",
        "collective_rpc",
    ),
    *("start_profile", "stop_profile", "update_weights", "get_metrics"),
)
_made = itertools.count()  # LLM objects of this script
LENGTH = struct.Struct("<Q")
CREDENTIALS = struct.Struct("3i")
MEET_S = 300.0  # for the first to listen: it has imports to do, and no model to load before
SEND_S = 600.0  # that one of the others may take to read


def _place(backend: str | None, environ: Mapping[str, str]) -> Place | None:
    """Of this process; None where no launcher has started it. ConfigError for one on another machine."""
    if backend != LAUNCHED:
        return None
    found = place_of(environ)
    if found.machines > 1:
        raise ConfigError(
            f"{OPTION} {LAUNCHED}: an LLM object's processes are on one machine; over several `actorserve launch` "
            "serves with --pipeline-parallel-size"
        )
    return found


def join_launched(backend: str | None) -> Teller | Listener | None:
    """This process' end; None where no launcher has started it."""
    own = _place(backend, os.environ)
    if own is None:
        return None
    number = next(_made)
    return Listener(os.environ, number) if own.rank else Teller(own, os.environ, number)


def _name(environ: Mapping[str, str], number: int) -> str:
    """Of the socket: an abstract one, of this run of the launcher and the script's so-manieth LLM."""
    run = environ.get("TORCHELASTIC_RUN_ID", ""), environ.get("TORCHELASTIC_RESTART_COUNT", "")
    parts = (*run, environ["MASTER_ADDR"], environ["MASTER_PORT"], str(os.getuid()), str(number))
    return "\0actorserve-launched-" + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _is_own(peer: socket.socket) -> bool:
    _, user, _ = CREDENTIALS.unpack(peer.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, CREDENTIALS.size))
    return bool(user == os.getuid())


class Teller:
    """The first process' end."""

    def __init__(self, own: Place, environ: Mapping[str, str], number: int) -> None:
        self._wanted = own.world - 1
        self._peers: list[socket.socket] = []
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(_name(environ, number))
        self._listener.listen(own.world)

    def take_over(self, llm: object) -> None:
        """From now on the others are told what its calls bring; the first thing, that it is there."""
        self._meet()
        for name in CALLS:
            setattr(llm, name, _telling(getattr(llm, name), self))
        self.tell(True, None)

    def _meet(self) -> None:
        """Until all are there. TimeoutError if they do not come."""
        deadline = time.monotonic() + MEET_S
        while len(self._peers) < self._wanted:
            self._listener.settimeout(max(0.0, deadline - time.monotonic()))
            peer, _ = self._listener.accept()
            if _is_own(peer):
                peer.settimeout(SEND_S)
                self._peers.append(peer)
            else:
                peer.close()

    def tell(self, good: bool, outcome: Any) -> None:
        """What a call has returned, or raised."""
        if not self._peers:
            return
        try:
            data = pickle.dumps((good, outcome))
        except Exception as error:  # a script's own objects may be anything
            data = pickle.dumps((False, TypeError(f"what it returned cannot be told to the other processes: {error}")))
        for peer in list(self._peers):
            try:
                peer.sendall(LENGTH.pack(len(data)) + data)
            except OSError:  # it has ended, or reads nothing: nobody waits for it
                self._peers.remove(peer)
                peer.close()

    def close(self) -> None:
        for peer in (*self._peers, self._listener):
            peer.close()
        self._peers.clear()


class Listener:
    """Another's."""

    def __init__(self, environ: Mapping[str, str], number: int) -> None:
        self._socket = self._connect(_name(environ, number))
        if not _is_own(self._socket):
            raise EngineDead("the first process is another user's")

    def _connect(self, name: str) -> socket.socket:
        deadline = time.monotonic() + MEET_S
        while True:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            try:
                made.connect(name)
                return made
            except (ConnectionError, FileNotFoundError):
                made.close()
                if time.monotonic() > deadline:
                    raise EngineDead("the first process (RANK 0) has not made its LLM") from None
                select.select([], [], [], 0.02)  # there is nothing to wait on before the name is there

    def take_over(self, llm: object) -> None:
        """From now on its calls bring what the first process' bring. Returns once that one can be asked."""
        self.hear()
        for name in CALLS:
            setattr(llm, name, _hearing(getattr(llm, name), self))

    def hear(self) -> Any:
        """What the first process' next call returns; raises what it raises."""
        (length,) = LENGTH.unpack(self._read(LENGTH.size))
        good, outcome = pickle.loads(self._read(length))  # of this user's own process
        if good:
            return outcome
        raise outcome

    def _read(self, count: int) -> bytes:
        parts = []
        while count:
            part = self._socket.recv(min(count, 1 << 20))
            if not part:
                raise EngineDead("the first process (RANK 0) has ended")
            parts.append(part)
            count -= len(part)
        return b"".join(parts)

    def close(self) -> None:
        self._socket.close()


def _telling(call: Callable[..., Any], teller: Teller) -> Callable[..., Any]:
    """A method of the first process."""
    busy = False

    @wraps(call)
    def told(*arguments: Any, **options: Any) -> Any:
        nonlocal busy
        if busy:  # one that is called by another
            return call(*arguments, **options)
        busy = True
        try:
            result = call(*arguments, **options)
        except Exception as error:
            teller.tell(False, error)
            raise
        finally:
            busy = False
        teller.tell(True, result)
        return result

    return told


def _hearing(call: Callable[..., Any], listener: Listener) -> Callable[..., Any]:
    """The same method in another process."""

    @wraps(call)
    def heard(*_: Any, **__: Any) -> Any:
        return listener.hear()

    return heard
