"""Models without weights: what linear layers that compute in another way make."""

from __future__ import annotations

from functools import wraps
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import BertConfig, BertModel

from actorserve.actors.worker.adapter.hollow import hollow

ROWS, COLUMNS, WIDTH = 2, 4, 6


class Product(nn.Linear):
    """As DeepSeek V4's of groups of heads, with a number beside its weights."""

    scale: Tensor

    def __init__(self) -> None:
        super().__init__(COLUMNS, WIDTH)
        self.register_buffer("scale", torch.ones(WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        assert x.is_meta, "it is computed"
        return super().forward(x) * self.scale


class Router(nn.Linear):
    """As Phi-3.5-MoE's and Llama 4's."""

    def __init__(self) -> None:
        super().__init__(COLUMNS, WIDTH)

    def forward(self, x: Tensor) -> Any:
        logits = super().forward(x)
        return logits, logits.topk(1).values


class Sum(Router):
    """With what it is added to."""

    def forward(self, x: Tensor, residual: Tensor) -> Any:  # type: ignore[override]
        return super().forward(x)[0] + residual, residual


class Parts(Router):
    """With a layer of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(COLUMNS)

    def forward(self, x: Tensor) -> Any:
        return super().forward(self.norm(x))


def test_of_a_product_the_shape_alone_is_seen() -> None:
    zeros = hollow(Product)(torch.ones(ROWS, COLUMNS))
    assert torch.equal(zeros, torch.zeros(ROWS, WIDTH))


@pytest.mark.parametrize(
    ("kind", "beside", "widths"), [(Router, (), (WIDTH, 1)), (Sum, (WIDTH,), (WIDTH, WIDTH)), (Parts, (), (WIDTH, 1))]
)
def test_what_tells_more_than_a_product_is_computed(
    kind: type[Router], beside: tuple[int, ...], widths: tuple[int, ...]
) -> None:
    found = hollow(kind)(torch.ones(ROWS, COLUMNS), *(torch.zeros(ROWS, width) for width in beside))
    assert [(part.device.type, tuple(part.shape)) for part in found] == [("cpu", (ROWS, width)) for width in widths]


def test_whole_numbers_are_those_that_the_class_sets() -> None:
    config = BertConfig(vocab_size=8, hidden_size=4, num_hidden_layers=1, num_attention_heads=1, type_vocab_size=1)
    shell: Any = hollow(lambda: BertModel(config))
    embeddings = shell.embeddings
    assert not embeddings.token_type_ids.any(), "there is one type, 0"
    assert torch.equal(embeddings.position_ids[0], torch.arange(config.max_position_embeddings))
    assert shell(torch.ones(1, 2, dtype=torch.long)).last_hidden_state.shape == (1, 2, 4)


def chunk_states(x: Tensor, *, state: Tensor | None) -> tuple[Tensor, Tensor | None]:
    """As of delta rules in transformers."""
    assert x.is_meta and (state is None or state.is_meta), "it is computed"
    return x @ x.new_ones(COLUMNS, WIDTH), state


def decorated(function: Any) -> Any:
    return wraps(function)(lambda *args, **kwargs: function(*args, **kwargs))


class States(nn.Module):
    """A layer that goes through states in chunks."""

    @decorated
    def forward(self, x: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        return chunk_states(x, state=state)


def test_of_states_in_chunks_the_shapes_alone_are_seen() -> None:
    shell, x, state = hollow(States), torch.ones(ROWS, COLUMNS), torch.ones(WIDTH)
    for given, kept in ((None, None), (state, torch.zeros(WIDTH))):
        out, after = shell(x, state=given)
        assert torch.equal(out, torch.zeros(ROWS, WIDTH))
        assert after is None if kept is None else torch.equal(after, kept)
    with pytest.raises(AssertionError, match="it is computed"):
        States()(x)
