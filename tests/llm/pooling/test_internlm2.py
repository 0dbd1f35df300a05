"""InternLM 2, which transformers does not have: a Llama under other names says the same."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from actorserve import LLM, LoRARequest, SamplingParams
from tests.llm.pooling.test_pooling import TEXTS, make
from tests.support.models.checkpoints import checkpoint
from tests.support.models.embedders import encode
from tests.support.models.greedy import assert_greedy, reference
from tests.support.models.own_code.internlm2 import convert, write_adapters

OPTIONS: dict[str, Any] = {"device": "cpu", "threads": 1, "dtype": "float32", "in_process": True}
PROMPTS = [np.random.default_rng(seed).integers(3, 300, 20 + 17 * seed).tolist() for seed in range(3)]


@pytest.mark.parametrize("kind", ["llama", "llama_biased"])
def test_texts_are_those_of_the_same_llama(kind: str, tmp_path: Path) -> None:
    changes = {"mlp_bias": False} if kind == "llama_biased" else {}
    llama = checkpoint(kind, tmp_path, **changes)
    convert(llama, tmp_path / "internlm2")
    with LLM(str(tmp_path / "internlm2"), **OPTIONS) as llm:
        greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
        asked = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
        found = [one.outputs[0].token_ids for one in llm.generate(asked, greedy, use_tqdm=False)]
    assert_greedy(reference(llama), PROMPTS, [list(one) for one in found], 12)


def test_an_adapter_changes_q_k_and_v_alike(tmp_path: Path) -> None:
    llama, internlm2 = checkpoint("llama", tmp_path), tmp_path / "internlm2"
    convert(llama, internlm2)
    write_adapters(tmp_path / "three", internlm2, tmp_path / "one")
    greedy = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)
    asked, found = [{"prompt_token_ids": prompt} for prompt in PROMPTS], []
    for folder, adapter in ((llama, "three"), (internlm2, "one")):
        with LLM(str(folder), enable_lora=True, **OPTIONS) as llm:
            for given in (None, LoRARequest(adapter, 1, str(tmp_path / adapter))):
                outputs = llm.generate(asked, greedy, lora_request=given, use_tqdm=False)
                found.append([list(one.outputs[0].token_ids) for one in outputs])
    assert found[0] == found[2] and found[1] == found[3] and found[0] != found[1]


def test_a_reward(tmp_path: Path) -> None:
    llama = checkpoint("llama", tmp_path)
    convert(llama, tmp_path / "reward", reward=True)
    head = load_file(tmp_path / "reward" / "model.safetensors")["v_head.weight"]
    with make(tmp_path / "reward") as llm:
        found = llm.reward(TEXTS, use_tqdm=False)
        whole = [one.outputs.probs for one in llm.classify(TEXTS, use_tqdm=False)]
    for text, one, last in zip(TEXTS, found, whole, strict=True):
        with torch.inference_mode():
            states = reference(llama).model(torch.tensor([encode(llama, text)[0]])).last_hidden_state[0]
        wanted = (states @ head.T).numpy()
        assert np.abs(one.outputs.data - wanted).max() < 1e-4 and np.abs(np.array(last) - wanted[-1]).max() < 1e-4
