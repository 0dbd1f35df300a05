"""Heads of decoders that are no plain linear layer: reward models, and generating models that judge by a token."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from transformers import Qwen2Model, Qwen3ForCausalLM

from actorserve import ConfigError, PoolingParams
from tests.llm.pooling.test_pooling import TEXTS, make
from tests.support.models.checkpoints import write_model as write_generating
from tests.support.models.checkpoints import write_tokenizer
from tests.support.models.embedders import SENTENCES, encode, write_model
from tests.support.models.gguf.files import convert
from tests.support.models.weight_formats import write as write_packed

RAW = PoolingParams(use_activation=False)
BEFORE = (
    "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
    'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n'
)
AFTER = "<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n"
SEARCH = "Given a web search query, retrieve relevant passages that answer the query"


def write_reward(folder: Path, name: str, labels: int) -> dict[str, torch.Tensor]:
    """A Qwen2 with two layers behind it; these."""
    write_model("qwen2", folder)
    about = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(about | {"architectures": [name]}))
    made = torch.Generator().manual_seed(3)
    head = {
        "score.0.weight": torch.randn(32, 32, generator=made) / 6,
        "score.0.bias": torch.randn(32, generator=made),
        "score.2.weight": torch.randn(labels, 32, generator=made) / 6,
        "score.2.bias": torch.randn(labels, generator=made),
    }
    model = {f"model.{name}": tensor for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(model | head, folder / "model.safetensors")
    return head


def expected(folder: Path, head: dict[str, torch.Tensor], text: str, mean: bool = False) -> torch.Tensor:
    """Of each token, or of their mean, by transformers' layers."""
    kind: Any = Qwen2Model
    model = kind(kind.config_class(**json.loads((folder / "config.json").read_text()))).eval()
    stored = load_file(folder / "model.safetensors")
    model.load_state_dict({name[6:]: one for name, one in stored.items() if name.startswith("model.")})
    with torch.inference_mode():
        states = model(input_ids=torch.tensor([encode(folder, text)[0]])).last_hidden_state[0]
    states = states.mean(0, keepdim=True) if mean else states
    middle = torch.relu(states @ head["score.0.weight"].T + head["score.0.bias"])
    return middle @ head["score.2.weight"].T + head["score.2.bias"]


def test_a_reward_of_each_token_and_of_the_whole(tmp_path: Path) -> None:
    head = write_reward(tmp_path, "Qwen2ForRewardModel", 1)
    with make(tmp_path) as llm:
        rewards = llm.reward(TEXTS, use_tqdm=False)
        whole = [one.outputs.probs for one in llm.classify(TEXTS, use_tqdm=False)]
    for text, one, last in zip(TEXTS, rewards, whole, strict=True):
        wanted = expected(tmp_path, head, text).numpy()
        assert one.outputs.data.shape == wanted.shape and np.abs(one.outputs.data - wanted).max() < 1e-4
        assert np.abs(np.array(last) - wanted[-1]).max() < 1e-4


def test_a_class_of_the_mean(tmp_path: Path) -> None:
    """One vector is made of a text before its head looks at it."""
    head = write_reward(tmp_path, "Qwen2ForRewardModel", 1)
    with make(tmp_path, pooler_config={"pooling_type": "MEAN", "use_activation": False}) as llm:
        found = [one.outputs.probs for one in llm.classify(TEXTS, use_tqdm=False)]
    for text, one in zip(TEXTS, found, strict=True):
        wanted = expected(tmp_path, head, text, mean=True)[0].numpy()
        assert len(one) == 1 and np.abs(np.array(one) - wanted).max() < 1e-4


def test_rewards_of_steps(tmp_path: Path) -> None:
    """Of the tokens that end a step alone, as probabilities."""
    head = write_reward(tmp_path, "Qwen2ForProcessRewardModel", 2)
    ids = encode(tmp_path, SENTENCES[2])[0]
    step = max(set(ids), key=ids.count)
    with make(tmp_path, pooler_config={"pooling_type": "STEP", "step_tag_id": step}) as llm:
        found = llm.reward(SENTENCES, use_tqdm=False)
    for text, one in zip(SENTENCES, found, strict=True):
        own = torch.tensor(encode(tmp_path, text)[0]) == step
        wanted = expected(tmp_path, head, text).softmax(-1)[own].numpy()
        assert one.outputs.data.shape == wanted.shape
        assert np.allclose(one.outputs.data, wanted, atol=1e-5)


def test_a_reward_model_whose_head_does_not_fit_is_refused(tmp_path: Path) -> None:
    write_reward(tmp_path, "Qwen2ForRewardModel", 2)
    about = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(about | {"num_labels": 1}))
    with pytest.raises(ConfigError, match=r"a \[2, 32\] score.2.weight; \[1, 32\] is needed"):
        make(tmp_path)


class Judge:
    """A tiny model that says "y" or "n", as transformers has it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(exist_ok=True)
        write_generating("qwen3", folder, initializer_range=0.1)
        write_tokenizer(folder)
        self.tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
        self.model = Qwen3ForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()

    def ids(self, query: str, document: str, instruction: str) -> list[int]:
        asked = f"<Instruct>: {instruction}\n<Query>: {query}\n<Document>: {document}"
        parts = [self.tokenizer.encode(text, add_special_tokens=False).ids for text in (BEFORE, asked, AFTER)]
        return [id_ for part in parts for id_ in part]

    def logits(self, ids: list[int], of: list[int]) -> torch.Tensor:
        with torch.inference_mode():
            logits: torch.Tensor = self.model(input_ids=torch.tensor([ids])).logits[0, -1, of]
        return logits

    def answers(self, ids: list[int]) -> torch.Tensor:
        """Of n and y."""
        return self.logits(ids, [self.tokenizer.token_to_id(token) or 0 for token in "ny"])


def test_a_model_that_answers_yes_or_no_scores_pairs(tmp_path: Path) -> None:
    """Known by its name; where a text is cut, what stands around the texts stays."""
    judge = Judge(tmp_path / "Qwen3-Reranker-Tiny")
    with make(judge.folder, pooler_config={"classifier_from_token": ["n", "y"]}, max_num_batched_tokens=64) as llm:
        for about, params in ((SEARCH, None), ("Find a fox", PoolingParams(instruction="Find a fox"))):
            found = llm.score(SENTENCES[1], SENTENCES, pooling_params=params, use_tqdm=False)
            for text, one in zip(SENTENCES, found, strict=True):
                ids = judge.ids(SENTENCES[1], text, about)
                assert one.prompt_token_ids == ids
                assert abs(one.outputs.score - float(judge.answers(ids).softmax(-1)[1])) < 1e-5
        whole = judge.ids(SENTENCES[1], SENTENCES[2], SEARCH)
        cut = PoolingParams(truncate_prompt_tokens=len(whole) - 10)
        (one,) = llm.score(SENTENCES[1], SENTENCES[2], pooling_params=cut, use_tqdm=False)
        after = len(judge.tokenizer.encode(AFTER, add_special_tokens=False).ids)
        assert one.prompt_token_ids == whole[: -after - 10] + whole[-after:]
        raw = llm.score(SENTENCES[1], SENTENCES[2], pooling_params=RAW, use_tqdm=False)[0].outputs.score
        no, yes = judge.answers(whole).tolist()
        assert abs(raw - (yes - no)) < 1e-4


def test_tokens_that_are_labels(tmp_path: Path) -> None:
    """Of any decoder, each by itself: so has it what judges steps by its next token."""
    judge, ids = Judge(tmp_path), [7, 9, 11]
    with make(tmp_path, runner="pooling", pooler_config={"returned_token_ids": ids}) as llm:
        probs = llm.classify(SENTENCES, use_tqdm=False)
    for text, one in zip(SENTENCES, probs, strict=True):
        wanted = judge.logits(encode(tmp_path, text)[0], ids).softmax(-1).numpy()
        assert np.abs(np.array(one.outputs.probs) - wanted).max() < 1e-5


def test_tokens_that_are_not_there_are_named(tmp_path: Path) -> None:
    Judge(tmp_path)
    cases: list[tuple[dict[str, Any], str]] = [
        ({"classifier_from_token": ["n", "yess"]}, "classifier_from_token: 'yess' is no token"),
        ({"returned_token_ids": [384]}, "returned_token_ids: 384 is no token"),
        ({}, "--convert classify: Qwen3ForCausalLM has no head"),
    ]
    for config, text in cases:
        with pytest.raises(ConfigError) as refused:
            make(tmp_path, convert="classify", pooler_config=config)
        assert text in str(refused.value)


SLOW = [pytest.param(name, marks=pytest.mark.slow) for name in ("awq", "w4a16", "fp8")]


@pytest.mark.parametrize("name", ["gptq", "gguf", *SLOW])
def test_vectors_and_scores_of_quantised_weights(name: str, tmp_path: Path) -> None:
    """They are those of the numbers that the format means; what makes logits is a head in each."""
    source = tmp_path / "source"
    source.mkdir()
    write_generating("qwen3", source, initializer_range=0.1, hidden_size=64, intermediate_size=96)
    write_tokenizer(source)
    if name == "gguf":
        packed, plain = source / "m.gguf", Path(shutil.copytree(source, tmp_path / "plain"))
        meant = convert(source, packed, lambda key: "Q8_0" if "down" in key else "F32")
        save_file({key: torch.from_numpy(one).float() for key, one in meant.items()}, plain / "model.safetensors")
    else:
        packed, plain = write_packed(source, name, tmp_path)
    texts = [encode(source, sentence)[0] for sentence in SENTENCES]
    with make(packed, runner="pooling", quantization="none", pooler_config={"returned_token_ids": [5, 8]}) as llm:
        probs = llm.classify([{"prompt_token_ids": ids} for ids in texts], use_tqdm=False)
    model = Qwen3ForCausalLM.from_pretrained(plain, dtype=torch.float32).eval()
    for ids, one in zip(texts, probs, strict=True):
        with torch.inference_mode():
            wanted = model(input_ids=torch.tensor([ids])).logits[0, -1, [5, 8]].softmax(-1)
        assert np.abs(np.array(one.outputs.probs) - wanted.numpy()).max() < 1e-5
