"""What a worker of a native model leaves out of torch: it does without, and whoever needs it gets it."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.support.selection import slow

NATIVE = """
import inspect
import sys
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.options.config import Config
from actorserve.actors.worker.imports import import_late
from actorserve.actors.worker.torch_import import LATER, LEFT_OUT, generator, import_torch

described = inspect.getframeinfo
import_torch()
assert inspect.getframeinfo is described and inspect.stack()[0].filename == "<string>"
import torch

config = Config(device="cpu")
import_late(config)
from actorserve.actors.worker.models.weights import load_decoder

with torch.inference_mode():
    assert load_decoder(config, find_model(config)).vocab_size
assert LEFT_OUT not in sys.modules and not hasattr(torch, "_meta_registrations")
assert not [name for name in sys.modules if name.startswith(LATER)]
assert "transformers" not in sys.modules


def product():
    return torch.dot(torch.empty(3, device="meta"), torch.empty(3, device="meta"))


try:
    product()
except NotImplementedError:
    pass
else:
    raise AssertionError("there was nothing to leave out")
assert generator(3).initial_seed() == 3  # that needs all of it
assert product().shape == ()
assert torch._meta_registrations is sys.modules[LEFT_OUT]
"""


ASKED = """
import importlib
import inspect
import sys
from actorserve.actors.worker.torch_import import LATER, import_torch

import_torch()
import torch

inspect.getmodule(compile("", "no-such-file.py", "exec"))
assert not [name for name in sys.modules if name.startswith(LATER)], "who looks for a file's module asks for none"
assert torch.distributions.Categorical(torch.ones(3)).entropy() > 1
from torch import profiler
assert profiler.profile is sys.modules["torch.profiler"].profile
import torch.nn.quantized.dynamic as dynamic
assert dynamic.Linear is torch.nn.quantized.dynamic.Linear is torch.ao.nn.quantized.dynamic.Linear
assert torch.quantization.get_default_qconfig().weight
from torch.masked import masked_tensor
for name in LATER:
    assert importlib.import_module(name) is sys.modules[name]
    parent, _, last = name.rpartition(".")
    assert getattr(sys.modules[parent], last) is sys.modules[name], name
"""


def test_what_torch_imports_only_to_have_it_is_there_for_whoever_asks() -> None:
    done = subprocess.run([sys.executable, "-c", ASKED], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_native_model_is_loaded_without_what_the_device_meta_needs_and_that_can_be_had_later() -> None:
    done = subprocess.run([sys.executable, "-c", NATIVE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


SKIPPED = 77
SETTLED = f"""
import ctypes
import sys
from pathlib import Path
import torch
from actorserve.actors.worker.torch_import import import_torch

library = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
if not hasattr(library, "mkl_vml_serv_cpu_detect"):
    sys.exit({SKIPPED})  # another library
begin = ctypes.cast(library.mkl_vml_serv_cpu_detect, ctypes.c_void_p).value
code = ctypes.string_at(begin, 6)
assert code[:2] == bytes.fromhex("8b05"), "it begins by reading what is known: mov eax, [rip + distance]"
known = ctypes.c_int32.from_address(begin + 6 + int.from_bytes(code[2:], "little", signed=True))
assert known.value == -1, "torch alone has found it out"
import_torch()
assert known.value >= 0
"""


def test_the_processor_is_known_before_there_are_threads() -> None:
    """Which of MKL's functions of vectors are taken is found out without a lock."""
    done = subprocess.run([sys.executable, "-c", SETTLED], capture_output=True, text=True, timeout=120)
    if done.returncode == SKIPPED:
        pytest.skip("this torch is without MKL")
    assert done.returncode == 0, done.stderr


BESIDE = "encoder_decoder.load pooling.load pooling.dual_encoder vision.start adapter.load"  # as protocol/served.py has
EARLY = """
import sys
from actorserve.actors.worker.imports import import_early
from actorserve.actors.worker.torch_import import import_torch

import_torch()
import torch

def asked(*given, **named):
    raise AssertionError("a GPU is asked for")

for name in ("is_available", "device_count", "init", "_lazy_init"):
    setattr(torch.cuda, name, asked)
import_early(*sys.argv[1:])
"""


@pytest.mark.parametrize("beside", ["", *slow(BESIDE)])
def test_who_forks_workers_asks_for_no_gpu(beside: str) -> None:
    """Copies of a process that has asked for one, be it for their number, have none: CUDA cannot be forked."""
    command = [sys.executable, "-c", EARLY, *beside.split()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
