"""config.json of what fields of a GGUF file's header say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.model.gguf.adapted import RULES
from actorserve.actors.model.gguf.architectures import Fields, own_config
from actorserve.actors.model.gguf.config import make_config
from actorserve.actors.model.gguf.header import GgufHeader, read_header
from actorserve.actors.options.config import ConfigError
from tests.support.models.gguf.files import tiny_model

STATES = {"time_step_rank": 4, "inner_size": 64, "group_count": 1, "state_size": 8, "conv_kernel": 4}


@pytest.mark.parametrize(
    ("fields", "factor"),
    [
        ({"scaling.factor": 4.0}, 4.0),
        ({"scale_linear": 4.0}, 4.0),
        ({"scaling.factor": 2.0, "scale_linear": 4.0}, 2.0),
        ({"scaling.factor": 4.0, "scaling.type": "none"}, None),
        ({"scaling.factor": 0.0}, None),
        ({}, None),
    ],
)
def test_positions_are_stretched_where_the_file_names_no_rule(
    fields: dict[str, Any], factor: float | None, tmp_path: Path
) -> None:
    path = tiny_model(tmp_path, {f"llama.rope.{name}": value for name, value in fields.items()})
    wanted = {"rope_type": "linear", "factor": factor} if factor else None
    assert make_config(read_header(path), False)["rope_scaling"] == wanted


def own(architecture: str, said: dict[str, Any]) -> dict[str, Any]:
    """What an architecture adds to config.json, of fields alone."""
    states = {f"ssm.{name}": number for name, number in STATES.items()}
    named = {f"{architecture}.{name}": value for name, value in (states | said).items()}
    header = GgufHeader(Path("m.gguf"), {"general.architecture": architecture} | named, {})
    return own_config(Fields(header), header, RULES)


@pytest.mark.parametrize(
    ("fields", "linear"),
    [
        ({"attention.recurrent_layers": [True, False, False, True, False]}, [0, 3]),
        ({"attention.recurrent_layers": [1, 1, 0, 0, 0], "full_attention_interval": 4}, [0, 1]),
        ({"full_attention_interval": 2}, [0, 2]),
        ({}, [0, 1, 2]),
    ],
)
def test_layers_with_states_that_a_file_lists(fields: dict[str, Any], linear: list[int]) -> None:
    """The last of them drafts, and is none of the model's."""
    found = own("qwen35", {"block_count": 5, "nextn_predict_layers": 1} | fields)
    kinds = ["linear_attention" if layer in linear else "full_attention" for layer in range(4)]
    assert found["layer_types"] == kinds and found["num_hidden_layers"] == 4


@pytest.mark.parametrize("given", [True, [True, False], [2, 0, 0, 0]])
def test_a_list_of_layers_that_is_none(given: Any) -> None:
    with pytest.raises(ConfigError, match=r"qwen35\.attention\.recurrent_layers = .*; a list of 4 times true or false"):
        own("qwen35", {"block_count": 4, "attention.recurrent_layers": given})


def test_a_layer_of_nemotron_that_drafts() -> None:
    """It attends and has experts, and is counted with the others."""
    layers = {"attention.head_count_kv": [0, 2, 0, 2], "feed_forward_length": [0, 0, 32, 32], "block_count": 4}
    experts = {"expert_count": 4, "expert_used_count": 2}
    experts |= {"expert_feed_forward_length": 32, "expert_shared_feed_forward_length": 32}
    found = own("nemotron_h_moe", {**layers, **experts, "nextn_predict_layers": 1})
    assert found["layers_block_type"] == ["linear_attention", "full_attention", "moe"]
    assert found["num_hidden_layers"] == 3
