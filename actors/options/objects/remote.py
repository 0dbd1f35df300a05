"""Engines on other machines: their addresses, what both sides show each other, and what does not go with them yet."""

from __future__ import annotations

import importlib.util
import math
import os
import ssl
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple
from urllib.parse import parse_qsl

from ..config import Config, ConfigError
from ..sources import SECRET_VARIABLE

LEAST_SECRET = 16  # bytes
MOST_PORT = 65535
RAY = "ray://"
MOST_RAY = 64
IDLE_S = 300.0
NOT_WITH_STEWARD: Mapping[str, Callable[[Config], bool]] = {  # options of a machine that serves nobody
    "--engines": lambda config: bool(config.remote_engines),
    "--data-parallel-size above 1": lambda config: config.local_engines != 1 or config.data_parallel_size != 1,
    "--frontends above 1": lambda config: config.frontends > 1,
    "--grpc-port": lambda config: config.grpc_port is not None,
    "--warm-up": lambda config: config.warm_up,
    "--lora-modules": lambda config: bool(config.lora_modules),
    "--default-mm-loras": lambda config: config.default_mm_loras is not None,
    "--lora-folder": lambda config: config.lora_folder is not None,
}
NOT_YET: Mapping[str, Callable[[Config], bool]] = {  # with engines on other machines, on either side
    "--kv-offload on a machine without engines": lambda config: config.offloads and not config.local_engines,
    "--kv-events-config on a machine without engines": lambda config: config.tells_kv and not config.local_engines,
    "--prefill-engines": lambda config: config.prefill_engines > 0,
    "--record": lambda config: config.record is not None,
    "--nnodes above 1": lambda config: config.nnodes > 1,
    "--data-parallel-rank": lambda config: config.data_parallel_rank is not None,
}


def check_remote(config: Config) -> None:
    """ConfigError names the option that cannot be."""
    if not (config.remote_engines or config.steward):
        if config.shares_kv:
            _check_proofs(config)
            return
        raise ConfigError(
            "--engine-secret-file, --engine-certfile and --engine-ca-certs go with --engines, with `actorserve engine` "
            "on the other side, or with tcp or peer of --kv-offload"
        )
    option = "--steward" if config.steward else "--engines"
    for text in [config.steward] if config.steward else addresses(config):
        if not text.startswith(RAY) or config.steward:
            read_address(text, option, least=0 if config.steward else 1)
    if len({name.partition("#")[0] for name in addresses(config) if name.startswith(RAY)}) > 1:
        raise ConfigError("--engines: one Ray cluster keeps engines for a server, not several")
    if any(name.startswith(RAY) for name in addresses(config)) and importlib.util.find_spec("ray") is None:
        raise ConfigError("--engines: ray is not installed: pip install 'actorserve[ray]'")
    if twice := [text for text, count in Counter(addresses(config)).items() if count > 1]:
        raise ConfigError(f"--engines: {twice[0]} is there twice")
    for name, is_given in {**NOT_YET, **(NOT_WITH_STEWARD if config.steward else {})}.items():
        if is_given(config):
            raise ConfigError(f"{name}: not with {option}")
    _check_proofs(config)


def addresses(config: Config) -> list[str]:
    """Of --engines, one by one; those that Ray places have a name and no address."""
    parts = (part for text in config.remote_engines for part in text.split(",") if part)
    return [name for part in parts for name in _expanded(part)]


def _expanded(part: str) -> list[str]:
    if not part.startswith(RAY) or "#" in part:
        return [part]
    return [f"{part}#{number}" for number in range(_read_ray(part).most)]


class RayEngines(NamedTuple):
    """Engines that a Ray cluster keeps."""

    address: str
    namespace: str
    cpus: float
    gpus: float
    least: int
    most: int
    idle_s: float  # without need of one of them, before it is ended
    names: tuple[str, ...] = ()  # in --engines

    @property
    def resources(self) -> dict[str, float]:
        """Of each, on one machine."""
        return {"CPU": self.cpus} | ({"GPU": self.gpus} if self.gpus else {})


def ray_engines(config: Config) -> RayEngines | None:
    """None where there are none."""
    names = tuple(name for name in config.remote_engines if name.startswith(RAY))
    return _read_ray(names[0])._replace(names=names) if names else None


def _read_ray(text: str) -> RayEngines:
    """Of ray://ADDRESS?engines=N&cpus=C&gpus=G&name=NAME, or engines=N-M&idle=SECONDS."""
    address, _, query = text.partition("#")[0].removeprefix(RAY).partition("?")
    given = dict(parse_qsl(query, keep_blank_values=True))
    numbers = {"cpus": 1.0, "gpus": 0.0, "idle": IDLE_S}
    if unknown := [name for name in given if name not in (*numbers, "engines", "name")]:
        raise ConfigError(f"--engines: {unknown[0]} of {text}: there are engines, cpus, gpus, idle and name")
    for name in numbers:
        try:
            numbers[name] = float(given.get(name, numbers[name]))
        except ValueError:
            raise ConfigError(f"--engines: {name} of {text} must be a number") from None
        if not 0 <= numbers[name] < math.inf:
            raise ConfigError(f"--engines: {name} of {text} must not be below 0")
    if not numbers["cpus"] + numbers["gpus"]:
        raise ConfigError(f"--engines: cpus and gpus of {text}: one of them must be more than 0, or Ray places nothing")
    least, dash, most = given.get("engines", "1").partition("-")
    fewest, largest = (int(bound) if bound.isdecimal() else 0 for bound in (least, most if dash else least))
    if not 1 <= fewest <= largest <= MOST_RAY:
        raise ConfigError(f"--engines: engines of {text} must be a number from 1 to {MOST_RAY}, or two such as 1-4")
    name = f"actorserve-{given.get('name', 'engines')}"
    return RayEngines(address or "auto", name, numbers["cpus"], numbers["gpus"], fewest, largest, numbers["idle"])


def read_address(text: str, option: str, least: int = 1) -> tuple[str, int]:
    """(host, port) of `host:port`, where an IPv6 address has brackets."""
    host, _, port = text.rpartition(":")
    if host and port.isdecimal() and least <= int(port) <= MOST_PORT:
        return host.removeprefix("[").removesuffix("]"), int(port)
    raise ConfigError(f"{option}: {text} is no address such as 10.0.0.2:8100")


def _check_proofs(config: Config) -> None:
    if (config.engine_certfile is None) != (config.engine_ca_certs is None):
        raise ConfigError("--engine-certfile and --engine-ca-certs go together: each side shows one, and checks one")
    read_engine_secret(config)
    if config.steward and config.engine_certfile is None and importlib.util.find_spec("cryptography") is None:
        raise ConfigError(
            "--steward: cryptography, which makes a certificate to encrypt by, is not installed: "
            "pip install 'actorserve[engines]', or give --engine-certfile"
        )
    if config.engine_certfile is not None:
        engine_tls(config, server=config.steward is not None)


def read_engine_secret(config: Config) -> bytes:
    """What both sides know; nothing where certificates alone tell who somebody is."""
    if config.engine_secret_file is not None:
        option, secret = "--engine-secret-file", _read(config.engine_secret_file)
    else:
        option, secret = SECRET_VARIABLE, os.environ.get(SECRET_VARIABLE, "").encode()
    if not secret and option == SECRET_VARIABLE:
        if config.engine_certfile is None:
            raise ConfigError(
                "--engine-secret-file, or --engine-certfile with --engine-ca-certs: a server and its engines on other "
                "machines, or servers that give each other KV blocks, have to know each other"
            )
        return b""
    if len(secret) < LEAST_SECRET:
        raise ConfigError(f"{option}: the secret has less than {LEAST_SECRET} characters")
    return secret


def _read(path: str) -> bytes:
    try:
        return Path(path).expanduser().read_bytes().strip()
    except OSError as error:
        raise ConfigError(f"--engine-secret-file: {path} cannot be read: {error.strerror}") from None


def engine_tls(config: Config, server: bool) -> ssl.SSLContext | None:
    """Each side has to show a certificate of the one authority, which makes no others: names in them are not looked at,
    since machines come and go. None where there are none.
    """
    if config.engine_certfile is None or config.engine_ca_certs is None:
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if server else ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.check_hostname = False
    context.verify_mode = ssl.CERT_REQUIRED
    for option, path, load in (
        ("--engine-certfile", config.engine_certfile, context.load_cert_chain),
        ("--engine-ca-certs", config.engine_ca_certs, context.load_verify_locations),
    ):
        try:
            load(os.path.expanduser(path))
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"{option}: {path} cannot be used: {error.strerror or error}") from None
    return context
