"""A model is computed in the way in which a small one was right, and refused where there is none."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSeq2SeqLM

from actorserve.actors.worker.adapter.hooks import Unfit, register
from actorserve.actors.worker.adapter.improve import improve
from actorserve.actors.worker.adapter.twin import shrink
from actorserve.actors.worker.adapter.verify import randomise
from actorserve.actors.worker.encoder_decoder.load import _reader
from actorserve.actors.worker.encoder_decoder.model import EncoderDecoder, Way
from actorserve.actors.worker.encoder_decoder.verify import verify


def tiny(name: str) -> Any:
    register()
    torch.manual_seed(0)
    model = AutoModelForSeq2SeqLM.from_config(shrink(AutoConfig.for_model(name), 128)).float().eval()
    randomise(model)
    return model


def tried(model: Any) -> Any:
    return verify(model, _reader(model.config, 128), partial(improve, dtype=torch.float32))


def test_rows_that_decode_go_through_at_once_where_that_is_right() -> None:
    assert tried(tiny("bart")).way is Way.FLAT


def test_relative_positions_are_transformers_own_affair() -> None:
    verdict = tried(tiny("t5"))
    assert verdict.way is Way.SINGLE and "positions" in verdict.reasons[Way.FLAT]


@pytest.mark.parametrize("name", ["led", "pegasus_x", "switch_transformers", "t5gemma", "t5gemma2"])
def test_what_decoders_do_beside(name: str) -> None:
    """Windows of encoders, positions that are counted, experts, parts that have a config of their own, and keys of
    cross attention among a layer's own."""
    assert tried(tiny(name)).way is Way.SINGLE


def test_wrong_logits_are_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cross attention that sees a position less than there are."""
    own = EncoderDecoder._rows

    def short(self: Any, ids: Any, slots: Any, kv: Any, group: Any) -> Any:
        return own(self, ids, slots, kv, [(span, row._replace(length=row.length - 1)) for span, row in group])

    monkeypatch.setattr(EncoderDecoder, "_rows", short)
    with pytest.raises(Unfit, match="off by"):
        tried(tiny("bart"))
