"""What two machines of a pipeline say to each other, over one TCP connection for each worker that is not on node 0.

    worker's proxy (node 0)                    the worker's machine
    nonce                                 ->
                                          <-   Greeting: proof of the secret, a nonce of its own, facts
    Welcome: proof, the group's life      ->                                      or why it is refused
                                          <-   READY, once it has met the others and loaded its part
    Planned: a step, and the tokens of rows that are new ->
                                          <-   DONE, after each
A proof is HMAC-SHA256 of the other's nonce and the name of the side. Nothing of a step is sent before both have shown
that they know the secret; what is sent then is not encrypted, and neither are hidden states. A message is its length in
4 bytes, and msgpack.
"""

from __future__ import annotations

import hashlib
import hmac
import socket
from collections.abc import Mapping
from pathlib import Path
from struct import Struct
from typing import Any, TypeVar

import msgspec

import actorserve

from ...model.info import ModelInfo
from ...options.config import Config, ConfigError
from ...options.fields import flag
from ..step import Step
from ..wire import UNREADABLE

LENGTH = Struct("<I")
MOST_BYTES = 64 << 20  # of a message
NONCE_BYTES = 32
LEAST_SECRET = 16  # bytes
READY, DONE = b"r", b"d"
PROXY, WORKER = b"proxy", b"worker"
ALIKE = (  # options
    *("dtype", "quantization", "deterministic", "kv_cache_dtype", "block_size", "max_num_seqs", "model_impl"),
    *("max_num_batched_tokens", "pipeline_parallel_size", "tensor_parallel_size", "nnodes", "enable_expert_parallel"),
    *("load_format", "seed"),
)
KEEPALIVE = ((socket.TCP_KEEPIDLE, 5), (socket.TCP_KEEPINTVL, 2), (socket.TCP_KEEPCNT, 3))
LOST_MS = 10_000  # what was sent and is not acknowledged for so long ends the connection
Told = TypeVar("Told")


class Greeting(msgspec.Struct, array_like=True, frozen=True):
    """Of a worker's machine."""

    proof: bytes
    nonce: bytes
    facts: dict[str, str]


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The answer; `refused` says why it is none."""

    proof: bytes = b""
    life: int = 0
    refused: str = ""


class Planned(msgspec.Struct, array_like=True, frozen=True):
    """A step; of each of its new rows the tokens that the worker may have to compute, as int32."""

    step: Step
    tokens: list[bytes]


class Unproven(RuntimeError):
    """The other side does not know the secret, or speaks otherwise."""


def read_secret(config: Config) -> bytes:
    """That of --node-secret-file."""
    assert config.node_secret_file is not None
    try:
        secret = Path(config.node_secret_file).expanduser().read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--node-secret-file: {config.node_secret_file} cannot be read: {error.strerror}") from None
    if len(secret) < LEAST_SECRET:
        raise ConfigError(f"--node-secret-file: {config.node_secret_file} has less than {LEAST_SECRET} characters")
    return secret


def proof_of(secret: bytes, nonce: bytes, side: bytes) -> bytes:
    return hmac.digest(secret, nonce + side, hashlib.sha256)


def is_proven(given: bytes, secret: bytes, nonce: bytes, side: bytes) -> bool:
    return hmac.compare_digest(given, proof_of(secret, nonce, side))


def facts_of(config: Config, model: ModelInfo, table_sizes: tuple[int, ...]) -> dict[str, str]:
    """What must be the same on all machines, by the names under which it is told."""
    about = (Path(model.folder) / "config.json").read_bytes()
    return {
        "version": actorserve.__version__,
        "model (config.json)": hashlib.sha256(about).hexdigest()[:16],
        "--max-model-len": str(model.max_model_len),
        "size of the request table (--max-num-queued-reqs, --frontends)": str(table_sizes),
        **{flag(name): str(getattr(config, name)) for name in ALIKE},
    }


def differences(own: Mapping[str, str], other: Mapping[str, str]) -> str:
    """What differs, by name, with both values; nothing if nothing does."""
    names = [name for name in {**own, **other} if own.get(name) != other.get(name)]
    return ", ".join(f"{name}: {own.get(name, 'not told')} here, {other.get(name, 'not told')} there" for name in names)


def prepare(connection: socket.socket) -> socket.socket:
    """Small messages leave at once, and a machine that is gone is noticed."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for option, value in KEEPALIVE:
        connection.setsockopt(socket.IPPROTO_TCP, option, value)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, LOST_MS)
    return connection


def send(connection: socket.socket, message: Any) -> None:
    encoded = msgspec.msgpack.encode(message)
    connection.sendall(LENGTH.pack(len(encoded)) + encoded)


def receive(connection: socket.socket, kind: type[Told]) -> Told:
    """The next message; EOFError at the end of the connection, Unproven if it is none of this kind."""
    (length,) = LENGTH.unpack(read_bytes(connection, LENGTH.size))
    if length > MOST_BYTES:
        raise Unproven(f"a message of {length} bytes")
    try:
        return msgspec.msgpack.decode(read_bytes(connection, length), type=kind)
    except UNREADABLE as error:
        raise Unproven(f"no {kind.__name__}: {error}") from None


def read_bytes(connection: socket.socket, count: int) -> bytes:
    """So many; EOFError if there are fewer."""
    found = bytearray()
    while len(found) < count:
        part = connection.recv(count - len(found))
        if not part:
            raise EOFError("the connection has ended")
        found += part
    return bytes(found)


def proxy_port(config: Config, worker: int) -> int:
    """Where the proxy of this worker listens; --master-port itself is where all workers meet."""
    return config.master_port + 1 + worker
