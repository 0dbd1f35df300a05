"""Step 3.5: its config.json as it is published, with small numbers, is read; its texts are those of Step 3.7."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers.conversion_mapping import get_checkpoint_conversion_mapping

from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.adapter import verify
from tests.support.models.census import generated, served, tight
from tests.support.models.checkpoints import VOCABULARY, write_tokenizer

from ..loaded import load, logits_of

LAYERS, DRAFTING = 6, 3
ALL = LAYERS + DRAFTING
EVERY = 4  # of so many layers the first sees all
FIELDS: dict[str, Any] = {
    "architectures": ["Step3p5ForCausalLM"],
    "model_type": "step3p5",
    "auto_map": {"AutoModelForCausalLM": "modeling_step3p5.Step3p5ForCausalLM"},
    "rope_scaling": {
        **{"rope_type": "llama3", "factor": 2.0, "original_max_position_embeddings": 256},
        **{"low_freq_factor": 1.0, "high_freq_factor": 32.0},
    },
    "yarn_only_types": ["full_attention"],
    **{"hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": LAYERS, "vocab_size": VOCABULARY},
    **{"max_seq_len": 512, "max_position_embeddings": 512, "torch_dtype": "float32", "use_qk_norm": True},
    **{"num_attention_heads": 4, "num_attention_groups": 2, "head_dim": 16, "tie_word_embeddings": False},
    **{"moe_layers_enum": "2,3,4,5", "use_moe": True, "moe_num_experts": 8, "moe_top_k": 3},
    **{"moe_intermediate_size": 32, "share_expert_dim": 32, "norm_expert_weight": True},
    **{"moe_router_activation": "sigmoid", "moe_router_scaling_factor": 3, "use_moe_router_bias": True},
    "rope_theta": [10_000.0 if layer % EVERY else 5_000_000.0 for layer in range(ALL)],
    "partial_rotary_factors": [1.0 if layer % EVERY else 0.5 for layer in range(ALL)],
    "layer_types": ["sliding_attention" if layer % EVERY else "full_attention" for layer in range(ALL)],
    "attention_other_setting": {
        **{"attention_type": "sliding_attention", "num_attention_heads": 6, "num_attention_groups": 2},
        **{"head_dim": 16, "true_head_dim": 16},
    },
    **{"use_head_wise_attn_gate": True, "sliding_window": 8, "num_nextn_predict_layers": DRAFTING},
    "swiglu_limits": [0.0] * 4 + [0.3, 0.3] + [0.0] * DRAFTING,
    "swiglu_limits_shared": [0.0] * 5 + [0.2] + [0.0] * DRAFTING,
    **{"zero_centered": True, "bos_token_id": 0, "eos_token_id": [1, 2]},
}
PARTS = {  # of layers, as transformers calls them, and as they are published
    ".mlp.shared_experts.": ".share_expert.",
    ".mlp.experts.down_proj": ".moe.down_proj.weight",
    ".mlp.gate.weight": ".moe.gate.weight",
    ".mlp.gate.e_score_correction_bias": ".moe.router_bias",
}


@pytest.fixture(scope="module")
def whole() -> Any:
    """Step 3.7 with this text part."""
    config = transformers.Step3p7Config(
        text_config={**FIELDS, "moe_router_scaling_factor": 3.0},
        vision_config={"width": 64, "layers": 1, "heads": 2, "image_size": 28},
    )
    torch.manual_seed(0)
    model: Any = transformers.Step3p7ForConditionalGeneration._from_config(config).float().eval()
    verify.randomise(model)
    for name, buffer in model.named_buffers():
        if name.endswith("e_score_correction_bias"):
            buffer.normal_(0, 0.2)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, bos_token_id=None)
    return model


@pytest.fixture(scope="module")
def folder(whole: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Step 3.5's checkpoint of the same weights."""
    found = tmp_path_factory.mktemp("step3p5")
    save_file(published(whole), found / "model.safetensors", {"format": "pt"})
    (found / "config.json").write_text(json.dumps(FIELDS))
    write_tokenizer(found)
    return found


def published(whole: Any) -> dict[str, torch.Tensor]:
    """Tensors of its texts, under the names and as the parts that they are in a checkpoint."""
    tensors: dict[str, torch.Tensor] = {}
    for name, one in whole.state_dict().items():
        own = name.replace("model.language_model.", "model.")
        if own.startswith(("model.vision_model.", "model.multi_modal_projector.")) or "rotary_emb" in own:
            continue
        if ".mlp.experts.gate_up_proj" in own:
            at = own.replace(".mlp.experts.gate_up_proj", ".moe")
            gate, up = one.chunk(2, 1)
            tensors |= {f"{at}.gate_proj.weight": gate.contiguous(), f"{at}.up_proj.weight": up.contiguous()}
            continue
        for part, name_of_it in PARTS.items():
            own = own.replace(part, name_of_it)
        tensors[own] = one.contiguous()
    return tensors


def test_logits_are_those_of_the_whole_model(whole: Any, folder: Path) -> None:
    text = torch.arange(3, 3 + verify.DECODED + 5)[None]
    with torch.inference_mode():
        wanted = whole(input_ids=text, attention_mask=torch.ones_like(text)).logits[0].float()
    assert torch.allclose(logits_of(folder), wanted, rtol=0, atol=1e-3 * float(wanted.std()))


def test_answers_in_a_crowd_are_those_of_generate(whole: Any, folder: Path) -> None:
    """In chunks, preempted, and once more by their prefixes."""
    rounds, preempted, cached, way = served(folder, **tight(folder))
    assert rounds == [generated(whole)] * 2
    assert preempted and cached and way == "flat"


def test_the_class_beside_the_weights_has_names_of_its_own() -> None:
    """Which is called as a checkpoint says, and may be trusted to read it."""
    assert get_checkpoint_conversion_mapping(FIELDS["architectures"][0]) is None


def test_experts_are_ours(folder: Path) -> None:
    """Whose weights may be kept in 8 bits."""
    model = load(folder, quantization="int8").model
    assert type(model.model.layers[LAYERS - 1].mlp.experts).__name__ == "_ExpertsModule"


def test_layers_that_draft_are_passed_over(folder: Path, tmp_path: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    write_tokenizer(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(FIELDS))
    file = tmp_path / "model.safetensors"
    save_file({**tensors, f"model.layers.{ALL - 1}.eh_proj.weight": torch.ones(2)}, file, {"format": "pt"})
    load(tmp_path)
    save_file({**tensors, f"model.layers.{ALL}.eh_proj.weight": torch.ones(2)}, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"it has model\.layers\.9\.eh_proj\.weight, for which the model has no use"):
        load(tmp_path)
