"""Checkpoints are made once a session; torch takes one thread; kernels are interpreted quickly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

os.environ.setdefault("TRITON_INTERPRET", "0" if torch.cuda.is_available() else "1")  # read when kernels are imported

from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.start.libraries import settle_libraries
from tests.support.compiler import need_compiler
from tests.support.gpu.pretended_device import PretendedDevice, pretended
from tests.support.gpu.triton_interpreter import quick_interpreter
from tests.support.models.checkpoints import checkpoint

__all__ = ["quick_interpreter"]  # a fixture

torch.set_num_threads(1)
settle_libraries()  # as workers of a GPU do, whose convolutions else are rounded


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """kind, changes → the folder of a checkpoint."""
    root = tmp_path_factory.mktemp("checkpoints")

    def folder(kind: str, **changes: Any) -> Path:
        return checkpoint(kind, root, **changes)

    return folder


@pytest.fixture(autouse=True, scope="module")
def kernels_of_torch() -> None:
    """Whatever a module before this one, an LLM in this process say, has left."""
    native.stop()


@pytest.fixture
def native_kernels() -> Iterator[None]:
    """What is loaded meanwhile computes by kernels of our own, on two threads."""
    need_compiler()
    assert native.start("native", 2).startswith("native")
    yield
    native.stop()


@pytest.fixture(params=["native", "torch"])
def kernels(request: pytest.FixtureRequest) -> Iterator[None]:
    """What is loaded meanwhile computes by these: both kinds."""
    if request.param == "native":
        need_compiler()
    native.start(request.param, 2)
    yield
    native.stop()


@pytest.fixture
def device() -> Iterator[PretendedDevice]:
    """A GPU that is pretended while the test runs."""
    with pretended() as found:
        yield found
