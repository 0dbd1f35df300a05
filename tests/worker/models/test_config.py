"""config.json as several versions of transformers wrote it, and what is refused."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from transformers import AutoConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from actorserve.actors.model.config_json import find_architecture, read_architecture
from actorserve.actors.model.rope import Growth, Rope, long_texts, read_rope
from actorserve.actors.model.values import Unsupported, Values
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.cpu.layers.rotation import rotation_table
from actorserve.actors.worker.models.rope import cosines_and_sines, inverse_frequencies

VALUES: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 64}


def read(name: str = "LlamaForCausalLM", **values: Any) -> Any:
    return read_architecture(VALUES | {"architectures": [name]} | values)


@pytest.mark.parametrize(
    ("values", "rope"),
    [
        ({}, Rope()),
        ({"rope_theta": 500.0}, Rope(theta=500.0)),
        ({"rope_theta": 500.0, "rope_scaling": None}, Rope(theta=500.0)),
        ({"rope_parameters": {"rope_type": "default", "rope_theta": 500.0}}, Rope(theta=500.0)),
        (
            {"rope_theta": 5.0, "rope_scaling": {"type": "linear", "factor": 2}},
            Rope(kind="linear", theta=5.0, numbers={"factor": 2.0}),
        ),
        (
            {"rope_parameters": {"rope_type": "llama3", "rope_theta": 5.0, **LLAMA3}},
            Rope(kind="llama3", theta=5.0, numbers=LLAMA3),
        ),
        (
            {"rope_theta": 5.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            Rope(kind="llama3", theta=5.0, numbers=LLAMA3),
        ),
        (
            {"rope_theta": 5.0, "rope_scaling": {"rope_type": "llama3", **LLAMA3, "high_freq_factor": 1.0}},
            Rope(kind="llama3", theta=5.0, numbers={**LLAMA3, "high_freq_factor": 1.0}),
        ),
    ],
)
def test_both_ways_to_write_ropes(values: dict[str, Any], rope: Any) -> None:
    assert read(**values).rope == rope


@pytest.mark.parametrize(
    "numbers",
    [
        {"factor": 4.0},
        {"factor": 8.0, "attention_factor": 1.3, "beta_fast": 16.0, "beta_slow": 2.0},
        {"factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707, "truncate": False},
        {"factor": 1.0},
    ],
)
def test_yarn_is_that_of_transformers(numbers: dict[str, Any]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    own = {"rope_type": "yarn", "rope_theta": 1e4, "original_max_position_embeddings": 64, **numbers}
    config: Any = LlamaConfig(hidden_size=256, num_attention_heads=2, rope_parameters=dict(own))
    cos, sin = LlamaRotaryEmbedding(config)(torch.zeros(1), torch.arange(500)[None])
    rope = read_rope(Values("config.json", {"rope_parameters": own}), {"yarn": "yarn"}, 128, False)
    for got, expected in zip(cosines_and_sines(rope, 128, 500), (cos, sin), strict=True):
        torch.testing.assert_close(got, expected[0, :, :64], rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("default", {}),
        ("linear", {"factor": 3.0}),
        ("llama3", LLAMA3),
        ("llama3", {**LLAMA3, "factor": 16.0, "high_freq_factor": 1.0}),  # as Llama 4 Scout: nothing lies between
    ],
)
def test_frequencies_are_those_of_transformers(kind: str, numbers: dict[str, float]) -> None:
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

    config: Any = LlamaConfig(
        hidden_size=256, num_attention_heads=2, rope_parameters={"rope_type": kind, "rope_theta": 1e4, **numbers}
    )
    expected = LlamaRotaryEmbedding(config).inv_freq
    got = inverse_frequencies(Rope(kind=kind, theta=1e4, numbers=numbers), 128, 4096)
    torch.testing.assert_close(got, expected, rtol=1e-6, atol=0)


LONG = {"short_factor": [1.0, 1.5, 2.0, 2.5, 3.0, 3.5], "long_factor": [2.0, 4.0, 8.0, 16.0, 32.0, 64.0]}


@pytest.mark.parametrize("length", [64, 65])
@pytest.mark.parametrize("numbers", [{}, {"factor": 4.0}, {"attention_factor": 1.3}])
def test_long_texts_are_turned_as_by_transformers(length: int, numbers: dict[str, float]) -> None:
    """By the short factors up to the original length, by the long ones beyond it; 12 of a head's 16 numbers turn."""
    from transformers import Phi3Config
    from transformers.models.phi3.modeling_phi3 import Phi3RotaryEmbedding

    parameters = {"rope_type": "longrope", "rope_theta": 1e4, "partial_rotary_factor": 0.75, **LONG, **numbers}
    own: dict[str, Any] = {"max_position_embeddings": 512, "original_max_position_embeddings": 64}
    config = Phi3Config(hidden_size=64, num_attention_heads=4, rope_parameters=dict(parameters), **own)
    cos, sin = Phi3RotaryEmbedding(config)(torch.zeros(1), torch.arange(length)[None])
    rope = read_rope(Values("config.json", {"rope_parameters": parameters, **own}), {"longrope": "longrope"}, 16, True)
    for got, expected in zip(cosines_and_sines(rope, 16, length), (cos, sin), strict=True):
        torch.testing.assert_close(got, expected[0, :, :6], rtol=1e-6, atol=1e-6)
    assert bool(long_texts(rope, length)) == (length > 64)
    assert (rotation_table(rope, 16, length)[:, 6:] == 1).all(), "numbers that do not turn"


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"long_factor": LONG["short_factor"][:5]}, "long_factor = [1.0, 1.5, 2.0, 2.5, 3.0]; a list of 6 numbers"),
        ({"short_factor": [1.0] * 5 + [0]}, "short_factor = [1.0, 1.0, 1.0, 1.0, 1.0, 0]; a list of 6 numbers"),
        ({"short_factor": None}, "short_factor = None; a list of 6"),
        ({"short_factor": [1] * 5 + [10**400]}, "a list of 6 numbers above 0 and up to 1e+15"),
        ({"short_factor": [1] * 5 + [float("nan")]}, "a list of 6 numbers above 0 and up to 1e+15"),
        ({"partial_rotary_factor": 0.2}, "partial_rotary_factor = 0.2; one that turns an even number of a head's 16"),
        ({"original_max_position_embeddings": None}, "longrope needs original_max_position_embeddings"),
        ({"original_max_position_embeddings": 1}, "attention_factor"),
        ({"rope_type": "yarn"}, "rope type yarn is not supported; these are: longrope"),
    ],
)
def test_a_longrope_that_cannot_be_names_the_field(values: dict[str, Any], said: str) -> None:
    rope = {"rope_type": "longrope", "partial_rotary_factor": 0.75, "original_max_position_embeddings": 64, **LONG}
    given = Values("config.json", {"rope_scaling": rope | values, "max_position_embeddings": 512})
    with pytest.raises(ConfigError, match="model: ") as caught:
        read_rope(given, {"longrope": "longrope"}, 16, True)
    assert said in str(caught.value)


@pytest.mark.parametrize(("own", "beside"), [(1.0, 0.5), (1.0, None), (0.25, 1.0), (None, 1.0), (None, None)])
def test_what_the_ropes_own_object_says_of_its_part_goes_before_what_stands_beside_it(
    own: float | None, beside: float | None
) -> None:
    parts = {
        name: {} if part is None else {"partial_rotary_factor": part} for name, part in (("o", own), ("b", beside))
    }
    values = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, **parts["o"]}, **parts["b"]}
    config: Any = AutoConfig.for_model("glm4", **copy.deepcopy(values))
    found = read("Glm4ForCausalLM", head_dim=128, **values).rope.rotary_dim
    assert (found or 128) == 128 * config.rope_parameters["partial_rotary_factor"]


def test_dynamic_is_the_default_within_the_models_positions() -> None:
    assert read(rope_scaling={"type": "dynamic", "rope_type": "dynamic", "factor": 2.0}).rope == Rope()
    with pytest.raises(ConfigError, match="dynamic with"):
        read(rope_scaling={"type": "dynamic", "alpha": 1000.0})


def test_what_takes_back_yarns_own_factor() -> None:
    """As DeepSeek-R1-0528-Qwen3-8B has it."""
    given = {
        "rope_type": "yarn",
        "factor": 4.0,
        "original_max_position_embeddings": 64,
        "attn_factor": 0.8782488562869419,
    }
    assert read("Qwen3ForCausalLM", rope_scaling=given).rope.numbers["attention_factor"] == pytest.approx(1.0)


def test_llama4s_growth_was_a_number_at_first() -> None:
    fields = {
        "num_local_experts": 2,
        "intermediate_size_mlp": 8,
        "interleave_moe_layer_step": 1,
        "num_experts_per_tok": 1,
    }
    grown = [read("Llama4ForCausalLM", **fields, attn_temperature_tuning=given).growth for given in (4, True, 0, False)]
    assert grown[0] == grown[1] is not None and grown[2] is grown[3] is None


def test_queries_grow_as_the_rotation_says() -> None:
    """Ministral 3: nothing where there is no such number, and a field by name where the length is missing."""
    absent = read("Ministral3ForCausalLM")
    assert absent.growth == Growth(0.1, 16384.0, first=0, turning=True)
    assert absent.rope.kind == "yarn" and absent.rope.attention_factor == 1
    assert absent.grows(0) and absent.growth_within(16385) == absent.growth and absent.growth_within(16384) is None
    rope = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 16.0, "original_max_position_embeddings": 64}
    assert read("Ministral3ForCausalLM", rope_parameters=rope).growth is None
    with pytest.raises(ConfigError, match="original_max_position_embeddings"):
        read("Ministral3ForCausalLM", rope_parameters={"rope_type": "default", "llama_4_scaling_beta": 0.1})


def test_experts_without_an_mlp_for_all_tokens() -> None:
    """As Qwen3-Coder says it."""
    given = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
    moe = read("Qwen3MoeForCausalLM", **given, shared_expert_intermediate_size=0).moe
    assert moe is not None and moe.shared_intermediate_size == 0


def test_layers_of_glm_that_have_experts() -> None:
    """As GLM-4.7-Flash is published, and as transformers writes it."""
    sizes = {"n_routed_experts": 8, "moe_intermediate_size": 8}
    published, listed = (
        read("Glm4MoeLiteForCausalLM", **sizes, **more)
        for more in ({"first_k_dense_replace": 1}, {"mlp_layer_types": ["sparse", "dense", "sparse"]})
    )
    assert [own.moe and own.moe.layers for own in (published, listed)] == [(False, True, True), (True, False, True)]
    assert published.beside == ("model.layers.3.",) and published.latent is not None
    assert (published.head_dim, published.latent.q_rank, published.moe and published.moe.factor) == (256, 768, 1.8)
    with pytest.raises(ConfigError, match="mlp_layer_types"):
        read("Glm4MoeLiteForCausalLM", **sizes, mlp_layer_types=["sparse"])


def test_granite_4_with_states_or_experts_is_left_to_transformers() -> None:
    """As it was published: layers and positions by the names of that time."""
    dense = {"layer_types": ["attention"] * 3, "num_local_experts": 0, "shared_intermediate_size": 24}
    own = read("GraniteMoeHybridForCausalLM", **dense, position_embedding_type="rope")
    assert own.intermediate_size == 24 and own.ropes is None
    assert read("GraniteMoeHybridForCausalLM", **dense, position_embedding_type="nope").rope_of(0) is None
    for other in (
        {"layer_types": ["attention", "mamba", "attention"]},
        {"num_local_experts": 4},
        {"layer_types": None},
    ):
        values = {**VALUES, "architectures": ["GraniteMoeHybridForCausalLM"], **dense, **other}
        assert find_architecture(values, "auto") is None
        with pytest.raises(Unsupported, match=next(iter(other))):
            find_architecture(values, "native")


def test_windows_of_each_family() -> None:
    assert read(sliding_window=8).windows == (None, None, None)
    assert read("MistralForCausalLM", sliding_window=8).windows == (8, 8, 8)
    assert read("MistralForCausalLM", sliding_window=None).windows == (None, None, None)
    assert read("Phi3ForCausalLM", sliding_window=8).windows == (8, 8, 8)
    assert read("Phi3ForCausalLM").windows == (None, None, None)
    assert read("Qwen2ForCausalLM", sliding_window=8).windows == (None, None, None)
    switched = {"use_sliding_window": True, "sliding_window": 8}
    assert read("Qwen2ForCausalLM", max_window_layers=2, **switched).windows == (None, None, 8)
    kinds = ["sliding_attention", "full_attention", "sliding_attention"]
    assert read("Qwen3ForCausalLM", layer_types=kinds, **switched).windows == (8, None, 8)


def test_what_is_absent_is_as_in_transformers() -> None:
    del_heads = {key: value for key, value in VALUES.items() if key != "num_key_value_heads"}
    assert read_architecture(del_heads).kv_heads == 4
    assert read("Qwen3ForCausalLM").head_dim == 128
    assert read().head_dim == 16
    assert read("MistralForCausalLM").windows == (4096,) * 3
    assert not read().tied
    assert (read("Phi3ForCausalLM").norm_eps, read().norm_eps) == (1e-5, 1e-6)
    older = {"rope_scaling": {"type": "su", "short_factor": [1.0] * 8, "long_factor": [2.0] * 8}}
    long = read("Phi3ForCausalLM", **older, max_position_embeddings=8192).rope.long
    assert long is not None and (long.original_length, long.attention_factor) == (4096.0, (1 + 1 / 12) ** 0.5)


NEWER = ("gemma2", "gemma3_text", "glm4", "granite", "ministral3", "mixtral", "olmo2", "olmo3", "seed_oss", "smollm3")


@pytest.mark.parametrize("kind", NEWER)
def test_what_newer_families_leave_out_is_as_in_transformers(kind: str) -> None:
    config: Any = AutoConfig.for_model(kind, **{**VALUES, "num_hidden_layers": 9})
    ours = read(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[kind], num_hidden_layers=9)
    assert (ours.tied, ours.norm_eps) == (config.tie_word_embeddings, config.rms_norm_eps)
    assert ours.kv_heads == config.num_key_value_heads
    assert ours.head_dim == (getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)
    kinds = getattr(config, "layer_types", ["full_attention"] * 9)
    assert [window is not None for window in ours.windows] == [kind == "sliding_attention" for kind in kinds]
    assert {window for window in ours.windows if window} <= {getattr(config, "sliding_window", None)}
    ropes = config.rope_parameters
    for layer, kind in enumerate(kinds):
        rope = ours.rope_of(layer)
        assert rope is None or rope.theta == ropes.get(kind, ropes)["rope_theta"]
    turning = getattr(config, "no_rope_layers", [1] * 9)
    assert [ours.rope_of(layer) is not None for layer in range(9)] == [bool(one) for one in turning]
    assert ours.soft_cap == getattr(config, "attn_logit_softcapping", None)
    assert ours.logits_cap == getattr(config, "final_logit_softcapping", None)


def test_older_files_of_gemma3_and_olmo3_say_ropes_otherwise() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0}
    gemma = read("Gemma3ForCausalLM", rope_theta=1e6, rope_local_base_freq=7.0, rope_scaling=scaling)
    assert (gemma.rope_of(0), gemma.windows) == (Rope(theta=7.0), (4096,) * 3)
    pattern = read("Gemma3ForCausalLM", sliding_window_pattern=2, rope_scaling=scaling)
    assert pattern.windows == (4096, None, 4096)
    assert pattern.rope_of(1) == pattern.rope == Rope(kind="linear", theta=1e6, numbers={"factor": 8.0})
    olmo = read("Olmo3ForCausalLM", num_hidden_layers=4, rope_theta=9.0, rope_scaling=scaling)
    assert [rope.kind for layer in range(4) if (rope := olmo.rope_of(layer))] == ["default"] * 3 + ["linear"]


def test_ropes_that_are_not_by_kind_are_stretched_in_layers_without_windows() -> None:
    scaling = {"rope_type": "linear", "factor": 8.0, "rope_theta": 9.0}
    olmo = read("Olmo3ForCausalLM", num_hidden_layers=4, rope_parameters=scaling)
    assert olmo.ropes == (Rope(theta=9.0),) * 3 + (Rope(kind="linear", theta=9.0, numbers={"factor": 8.0}),)
    gemma = read("Gemma3ForCausalLM", rope_parameters=scaling, sliding_window_pattern=2)
    assert gemma.ropes is not None and [rope.theta for rope in gemma.ropes if rope] == [10_000.0, 9.0, 10_000.0]


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "GPT2LMHeadModel is not supported; these are: LlamaForCausalLM"),
        ({"hidden_act": "gelu"}, "activation gelu is not supported; these are: silu"),
        ({"rope_scaling": {"rope_type": "ntk", "factor": 2.0}}, "rope type ntk is not supported; these are: default"),
        ({"rope_scaling": {"rope_type": "yarn"}}, "yarn needs factor"),
        (
            {"rope_scaling": {"rope_type": "yarn", "factor": 2, "beta_fast": 1, "beta_slow": 2}},
            "beta_fast = 1; at least beta_slow, 2, is needed",
        ),
        (
            {"architectures": ["Gemma3ForCausalLM"], "layer_types": ["full_attention"]},
            "layer_types = ['full_attention']; a list of 3 times full_attention or sliding_attention",
        ),
        ({"architectures": ["Gemma3ForCausalLM"], "use_bidirectional_attention": True}, "use_bidirectional_attention"),
        ({"architectures": ["Gemma2ForCausalLM"], "final_logit_softcapping": -1}, "final_logit_softcapping = -1"),
        ({"architectures": ["SmolLM3ForCausalLM"], "no_rope_layers": [1, 2, 0]}, "a list of 3 times 0 or 1"),
        ({"architectures": ["GraniteForCausalLM"], "logits_scaling": 0}, "logits_scaling = 0"),
        ({"rope_scaling": {"rope_type": "linear"}}, "linear needs factor"),
        ({"rope_parameters": {"rope_type": "default", "partial_rotary_factor": 0.5}}, "partial_rotary_factor"),
        (
            {"quantization_config": {"quant_method": "gptq"}},
            "quantization_config says bits = None; 2 or 3 or 4 or 8 is needed",
        ),
        (
            {"quantization_config": {"quant_method": "hqq"}},
            "quant_method = 'hqq', which is not supported; these are: comp",
        ),
        ({"hidden_size": None}, "hidden_size = None"),
        ({"num_key_value_heads": 3}, "4 attention heads cannot share 3"),
        ({"head_dim": 7}, "heads of 7 numbers"),
    ],
)
def test_refusals_name_the_thing(values: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match="model: ") as caught:
        read_architecture(VALUES | values)
    assert said in str(caught.value)


@pytest.mark.parametrize(("field", "value"), [("architectures", ["GPT2LMHeadModel"]), ("hidden_act", "gelu")])
def test_what_others_serve_is_said(field: str, value: object) -> None:
    """Of what these layers alone cannot, the option says how it is served."""
    values = {**VALUES, field: value}
    assert find_architecture(values, "auto") is None
    with pytest.raises(ConfigError, match=r"not supported; .*; --model-impl auto serves it by layers of trans"):
        find_architecture(values, "native")
