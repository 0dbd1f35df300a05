"""--distributed-executor-backend: what keeps the workers' processes, by vLLM's names.

mp        this server does: how it always is
uni       there is one worker
ray       engines are kept by Ray, where --engines says (objects/remote.py)
external_launcher
          somebody else has started a process for each worker, as torchrun does, and its environment says which this is:
          the first of a machine does what the machine has to, the others nothing (`llm/launched.py` for an LLM)
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import msgspec

from .config import Config, ConfigError

OPTION = "--distributed-executor-backend"
LAUNCHED = "external_launcher"
PORT_BEHIND = 1  # MASTER_PORT: that one is the launcher's own


@dataclass(frozen=True)
class Place:
    """Of this process among those that were started."""

    rank: int
    world: int
    on_machine: int  # processes
    address: str
    port: int

    @property
    def local_rank(self) -> int:
        return self.rank % self.on_machine

    @property
    def machines(self) -> int:
        return self.world // self.on_machine


def place_of(environ: Mapping[str, str]) -> Place:
    """ConfigError names the variable that is missing or wrong."""
    rank, world = _number(environ, "RANK"), _number(environ, "WORLD_SIZE")
    here = _number(environ, "LOCAL_WORLD_SIZE") if "LOCAL_WORLD_SIZE" in environ else world
    if not 0 <= rank < world:
        raise ConfigError(f"{OPTION} {LAUNCHED}: RANK is {rank}; of WORLD_SIZE {world} there are 0 to {world - 1}")
    if here < 1 or world % here:
        raise ConfigError(f"{OPTION} {LAUNCHED}: LOCAL_WORLD_SIZE {here} does not divide WORLD_SIZE {world}")
    if not environ.get("MASTER_ADDR"):
        raise ConfigError(f"{OPTION} {LAUNCHED}: MASTER_ADDR is not set; torchrun sets it")
    return Place(rank, world, here, environ["MASTER_ADDR"], _number(environ, "MASTER_PORT"))


def _number(environ: Mapping[str, str], name: str) -> int:
    text = environ.get(name, "")
    if not text.isdecimal() or len(text) > 9:
        what = f"is {text!r:.20}, no number" if text else "is not set"
        raise ConfigError(f"{OPTION} {LAUNCHED}: {name} {what}; torchrun sets it")
    return int(text)


def with_launcher(config: Config, environ: Mapping[str, str]) -> Config:
    """The same, with what the environment says of machines. ConfigError if there are too many or too few processes."""
    if config.distributed_executor_backend != LAUNCHED:
        return config
    place = place_of(environ)
    workers = config.workers * config.data_parallel_size
    if workers != place.world:
        raise ConfigError(
            f"{OPTION} {LAUNCHED}: WORLD_SIZE is {place.world}, and there are {workers} workers: "
            "--tensor-parallel-size times --pipeline-parallel-size times --data-parallel-size"
        )
    if place.machines == 1:
        return config
    node, port = place.rank // place.on_machine, config.master_port
    if port == next(field.default for field in msgspec.structs.fields(Config) if field.name == "master_port"):
        port = place.port + PORT_BEHIND
    return msgspec.structs.replace(
        config,
        nnodes=place.machines,
        node_rank=node,
        headless=node > 0,
        master_addr=config.master_addr or place.address,
        master_port=port,
    )


def check_backend(config: Config) -> None:
    """ConfigError if it is not how the other options say."""
    backend = config.distributed_executor_backend
    if backend == "uni" and config.workers * config.data_parallel_size > 1:
        workers = config.workers * config.data_parallel_size
        raise ConfigError(f"{OPTION} uni: that is one worker, and there are {workers}")
    if backend == "ray" and not config.uses_ray:
        raise ConfigError(f"{OPTION} ray: --engines ray://ADDRESS?engines=N says which cluster keeps how many engines")
    if backend not in (None, "ray") and config.uses_ray:
        raise ConfigError(f"{OPTION} {backend}: --engines names engines that Ray keeps")
