"""Which kernels a model that pools is computed with."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from actorserve.actors.options.config import make_config
from actorserve.actors.worker.cpu.layers import native
from actorserve.actors.worker.pooling import start


@pytest.mark.parametrize(
    ("options", "variant", "ours"),
    [
        ({"quantization": "int8"}, "amx", True),
        ({"quantization": "int8"}, "avx512", False),
        ({}, "amx", False),
        ({"cpu_kernels": "native"}, "avx2", True),
        ({"quantization": "int8"}, None, False),
    ],
)
def test_our_own_are_taken_where_they_are_quicker(
    options: dict[str, object], variant: str | None, ours: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = None if variant is None else SimpleNamespace(variant=variant, set_threads=lambda threads: None)
    monkeypatch.setattr(native, "choose", lambda option, find: (library, "as asked"))
    words = start._choose_kernels(make_config({"model": "m", **options}), 1)
    assert (native.current() is not None) == ours
    assert words == ("as asked" if ours or variant is None else "torch (quicker for prompts)")
    native.stop()
