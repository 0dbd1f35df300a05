"""--worker-cls: a class of whoever runs the server that does parts of a worker's work otherwise.

It derives from Worker, whose methods do what is done without it. What survives deaths stays the server's own: plans, KV
memory and its tables, the log of tokens, what is drawn. The code is trusted, and runs in each worker: what it raises
while the worker begins is told and ends that life, and in a step it is the step's failure.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import numpy as np

from ...options.config import Config, ConfigError
from ...options.plugins import WORKERS, load_plugin
from ...protocol.step import Step

if TYPE_CHECKING:
    from ..cpu.decoder import Decoder

OPTION = "--worker-cls"


class Worker:
    """One worker's. Public methods that are none of these may be called by their names (/collective_rpc)."""

    def __init__(self, config: Config, rank: int) -> None:
        """`rank` among the workers that share an engine's model."""
        self.config, self.rank = config, rank

    def init_device(self) -> None:
        """Before anything is loaded."""

    def load_model(self, load: Callable[[], Decoder]) -> Decoder:
        """The model: `load` makes that of the options."""
        return load()

    def execute_model(self, step: Step, run: Callable[[Step], np.ndarray]) -> np.ndarray:
        """The tokens that a step draws, of rows in its order (int32): `run` computes them."""
        return run(step)


def make_worker(config: Config, rank: int) -> Worker | None:
    """None without the option. ConfigError for what is no such class."""
    if config.worker_cls is None:
        return None
    found = load_plugin(OPTION, config.worker_cls, WORKERS)
    if not (isinstance(found, type) and issubclass(found, Worker)):
        raise ConfigError(f"{OPTION}: {config.worker_cls} does not derive from actorserve.Worker")
    made: Worker = found(config, rank)
    return made


def own_methods(worker: Worker) -> dict[str, Callable[..., object]]:
    """Those that may be called by their names."""
    names = [name for name in dir(worker) if not name.startswith("_") and not hasattr(Worker, name)]
    return {name: method for name in names if callable(method := getattr(worker, name))}
