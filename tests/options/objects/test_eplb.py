"""--enable-eplb and --eplb-config: what may be said, and what does not go with it."""

from __future__ import annotations

import pytest

from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.options.objects.eplb import EplbOptions, read_eplb

ON: dict[str, object] = {"enable_eplb": True, "enable_expert_parallel": True, "tensor_parallel_size": 2}


def test_what_is_said_is_read() -> None:
    given = {"step_interval": 50, "window_size": 10, "num_redundant_experts": 0}
    assert read_eplb(make_config({**ON, "eplb_config": given})) == EplbOptions(step_interval=50, window_size=10)
    assert read_eplb(make_config(ON)) == EplbOptions()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"enable_expert_parallel": False}, "goes with --enable-expert-parallel"),
        ({"enable_eplb": False, "eplb_config": "{}"}, "--eplb-config goes with --enable-eplb"),
        ({"eplb_config": "{"}, "--eplb-config: { is no JSON"),
        ({"eplb_config": '{"step": 1}'}, "--eplb-config: step is none of"),
        ({"eplb_config": '{"step_interval": 0}'}, "step_interval"),
        ({"eplb_config": '{"num_redundant_experts": 2}'}, "num_redundant_experts"),
        ({"deterministic": True}, "--enable-eplb: not with --deterministic"),
        ({"device": "cuda"}, "--enable-eplb: not with --device cuda"),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as refused:
        make_config({**ON, **options})
    assert words in str(refused.value)
