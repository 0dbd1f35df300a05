"""What a worker of a native model leaves out of torch: it does without, and whoever needs it gets it."""

from __future__ import annotations

import subprocess
import sys

NATIVE = """
import inspect
import sys
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.options.config import Config
from actorserve.actors.worker.imports import import_late
from actorserve.actors.worker.torch_import import LEFT_OUT, generator, import_torch

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


def test_a_native_model_is_loaded_without_what_the_device_meta_needs_and_that_can_be_had_later() -> None:
    done = subprocess.run([sys.executable, "-c", NATIVE], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
