"""LoRA adapters of all kinds for small models, made by PEFT, and what PEFT computes with them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from actorserve.actors.model.info import DEMO_FOLDER

ATTENTION = ["q_proj", "k_proj", "v_proj", "o_proj"]
LINEARS = [*ATTENTION, "gate_proj", "up_proj", "down_proj"]
KINDS: dict[str, dict[str, Any]] = {
    "plain": {"r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "v_proj"]},
    "rslora": {"r": 8, "lora_alpha": 4, "use_rslora": True, "target_modules": LINEARS},
    "dora": {"r": 4, "lora_alpha": 8, "use_dora": True, "target_modules": LINEARS},
    "patterns": {
        **{"r": 4, "lora_alpha": 8, "target_modules": r".*\.(q|k|gate|down)_proj"},
        **{"rank_pattern": {"q_proj": 2, "layers.1.mlp.down_proj": 6}, "alpha_pattern": {"k_proj": 16}},
    },
    "head": {"r": 4, "lora_alpha": 8, "target_modules": ["o_proj", "lm_head"]},
    "some": {"r": 3, "lora_alpha": 3, "target_modules": LINEARS, "layers_to_transform": [1]},
}
PREFIX = "base_model.model."


def write_adapter(base: Path, folder: Path, seed: int = 0, safe: bool = True, **config: Any) -> Path:
    """An adapter with weights that change what is said; `safe`: as safetensors, else pickled."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        adapted = get_peft_model(model, LoraConfig(**config))
        for name, parameter in adapted.named_parameters():
            if "lora_A" in name or "lora_B" in name:
                parameter.data.normal_(0, 0.15)
            elif "magnitude" in name:
                parameter.data.mul_(1 + 0.3 * torch.rand(parameter.shape))
    adapted.save_pretrained(str(folder))
    if not safe:
        from safetensors.torch import load_file

        torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
        (folder / "adapter_model.safetensors").unlink()
    return folder


def write_adapters(folder: Path, count: int) -> list[str]:
    """Adapters of the packaged model in PEFT's format, without PEFT, as NAME=PATH."""
    import torch
    from safetensors.torch import save_file

    from actorserve.actors.model.config_json import read_architecture

    shape, made = read_architecture(json.loads((DEMO_FOLDER / "config.json").read_text())), []
    for number in range(count):
        path, generator = folder / f"adapter-{number}", torch.Generator().manual_seed(number)
        path.mkdir()
        (path / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA", "r": 8, "lora_alpha": 8}))
        tensors = {}
        for linear in (linear for layer in range(shape.layers) for linear in shape.layer_at(layer).linears()):
            sizes = {"A": (8, shape.size(linear.columns)), "B": (sum(map(shape.size, linear.rows)), 8)}
            for part, size in sizes.items():
                name = f"base_model.model.{linear.name}.lora_{part}.weight"
                tensors[name] = torch.empty(size).normal_(0, 0.06, generator=generator)
        save_file(tensors, path / "adapter_model.safetensors")
        made.append(f"{path.name}={path}")
    return made


def logprobs_of(base: Path, adapter: Path | None, ids: Sequence[int]) -> Any:
    """What PEFT, or transformers without an adapter, makes of these: [tokens, words] in float32."""
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    model: Any = AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
    if adapter is not None:
        model = PeftModel.from_pretrained(model, str(adapter))
    with torch.inference_mode():
        return model.eval()(torch.tensor([list(ids)])).logits[0].log_softmax(-1)


def change_config(folder: Path, **fields: Any) -> None:
    """Other fields in an adapter's adapter_config.json."""
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
