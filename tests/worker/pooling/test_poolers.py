"""Vectors and labels of several prompts are those of each alone, and of prompts that want the same made together."""

from __future__ import annotations

from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch

from actorserve.actors.model.pooling.spec import METHODS, DenseSpec, PoolingSpec
from actorserve.actors.protocol.request import (
    CLASSIFY,
    EMBED,
    NORMALIZE,
    SOFTMAX,
    TOKEN_CLASSIFY,
    TOKEN_EMBED,
    Pooling,
)
from actorserve.actors.worker.pooling.poolers import CPU, Pooler, load_dense

WANTED = [
    Pooling(EMBED, activation=NORMALIZE),
    Pooling(TOKEN_EMBED, activation=NORMALIZE),
    Pooling(EMBED, 2, NORMALIZE),
    Pooling(EMBED, activation=NORMALIZE),
    Pooling(CLASSIFY, activation=SOFTMAX),
    Pooling(TOKEN_CLASSIFY),
    Pooling(EMBED, activation=NORMALIZE, whole=True),
    Pooling(CLASSIFY, activation=SOFTMAX),
    Pooling(TOKEN_EMBED, activation=NORMALIZE),
]
HIDDEN = [torch.randn(count, 4, generator=torch.Generator().manual_seed(count)) for count in range(1, 1 + len(WANTED))]
IDS = [torch.arange(len(one)) for one in HIDDEN]


def pooler(methods: list[str], base: str) -> tuple[Pooler, Mock, Mock]:
    fields: dict[str, Any] = {"tasks": [EMBED], "base": base, "methods": methods, "normalize": True}
    weights = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0))
    head = Mock(side_effect=lambda hidden, ids: [one @ weights[0].T if base else one[0, :3] for one in hidden])
    dense = Mock(side_effect=lambda x: x @ weights[1].T)
    made = Pooler(PoolingSpec(**fields, hidden=4, width=4, labels=["a", "b", "c"]), head)
    made.dense = [dense]
    return made, head, dense


def test_prompts_that_want_the_same_are_pooled_together() -> None:
    for methods in ([method] for method in METHODS):
        for base in ("X", ""):
            make, head, dense = pooler(methods, base)
            alone = [make([states], [ids], [one])[0] for states, ids, one in zip(HIDDEN, IDS, WANTED, strict=True)]
            head.reset_mock()
            dense.reset_mock()
            together = make(HIDDEN, IDS, WANTED)
            for one, other in zip(together, alone, strict=True):
                torch.testing.assert_close(one, other)
            assert dense.call_count == 4, "vectors, shorter ones, and those of tokens text by text"
            assert head.call_count == 2, "labels, and those of tokens"


@pytest.mark.parametrize("as_zip", [False, True])
def test_a_layer_of_a_pickled_file(tmp_path: Path, as_zip: bool) -> None:
    """The first models of sentence-transformers have it as PyTorch wrote it before 1.6."""
    layer = {"linear.weight": torch.arange(8.0).view(2, 4), "linear.bias": torch.ones(2)}
    torch.save(layer, tmp_path / "pytorch_model.bin", _use_new_zipfile_serialization=as_zip)
    spec = DenseSpec(folder=str(tmp_path), inputs=4, outputs=2, bias=True, activation="Identity")
    assert load_dense(spec, CPU)(torch.eye(4)[1]).tolist() == [2, 6]
