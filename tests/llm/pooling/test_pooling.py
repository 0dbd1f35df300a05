"""`LLM.embed`, `score`, `classify`, `reward` and `encode`: what transformers makes of each text alone, whatever else is
in the batch, in which parts it is computed, and behind which prefix.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from actorserve import LLM, ConfigError, PoolingParams
from tests.support.models.checkpoints import write_model as write_generating
from tests.support.models.checkpoints import write_tokenizer
from tests.support.models.embedders import (
    SENTENCES,
    cosines,
    encode,
    hidden_states,
    logits,
    vectors,
    write_model,
    write_modules,
)

EXACT = 0.99999
TEXTS = [*SENTENCES, *(f"{SENTENCES[2]} {sentence}" for sentence in SENTENCES)]  # the last ones begin alike


def make(folder: Path, **options: Any) -> LLM:
    """Parts of 16 tokens, and blocks of 8."""
    given = {"device": "cpu", "threads": 1, "dtype": "float32", "max_num_seqs": 4, "block_size": 8}
    return LLM(str(folder), in_process=True, **{**given, "max_num_batched_tokens": 16, **options})


def embedded(llm: LLM, texts: list[str], **params: Any) -> np.ndarray:
    found = llm.embed(texts, pooling_params=PoolingParams(**params), use_tqdm=False)
    return np.array([one.outputs.embedding for one in found])


@pytest.mark.parametrize(("family", "bare"), [("qwen3", False), ("mistral", True), ("qwen2", True)])
def test_a_decoder_in_parts_and_behind_a_prefix(family: str, bare: bool, tmp_path: Path) -> None:
    """Stored as the bare model, or with what makes logits."""
    if bare:
        write_model(family, tmp_path)
    else:
        write_generating(family, tmp_path)
        write_tokenizer(tmp_path)
    write_modules(tmp_path, "lasttoken")
    expected = vectors(tmp_path, TEXTS, "last")
    with make(tmp_path) as llm:
        for cached in (False, True):
            found = llm.embed(TEXTS, use_tqdm=False)
            assert cosines([one.outputs.embedding for one in found], expected).min() > EXACT
            if cached:
                assert sum(one.num_cached_tokens for one in found) > 200
        assert found[1].prompt_token_ids == encode(tmp_path, TEXTS[1])[0]
        again = llm.embed([{"prompt_token_ids": found[1].prompt_token_ids}], use_tqdm=False)
        assert cosines(again[0].outputs.embedding, expected[1]) > EXACT


def test_a_decoder_that_needs_all_tokens_gets_them_in_one_step(tmp_path: Path) -> None:
    """Longer than any other step, and never behind a prefix."""
    write_model("mistral", tmp_path)
    write_modules(tmp_path, "mean_tokens")
    expected = vectors(tmp_path, TEXTS, "mean")
    with make(tmp_path, speculative_config="none") as llm:
        for _ in range(2):
            found = llm.embed(TEXTS, use_tqdm=False)
            assert cosines([one.outputs.embedding for one in found], expected).min() > EXACT
            assert sum(one.num_cached_tokens for one in found) == 0
        tokens = llm.encode(TEXTS[:2], PoolingParams(task="token_embed"), use_tqdm=False)
        assert llm.encode(TEXTS[0], use_tqdm=False)[0].outputs.data.ndim == 1
        for params in (None, PoolingParams(), [PoolingParams()] * 2):
            cut = llm.embed(TEXTS[:2], pooling_params=params, truncate_prompt_tokens=3, use_tqdm=False)
            assert [len(one.prompt_token_ids) for one in cut] == [3, 3]
        with pytest.raises(ValueError, match="the task of pooling_params is token_embed, and embed is asked for"):
            llm.embed(TEXTS[0], pooling_params=PoolingParams(task="token_embed"))
        with pytest.raises(ValueError, match="cache_salt is for prompts of which text is generated"):
            llm.embed({"prompt": "a", "cache_salt": "b"})
    for one, states in zip(tokens, hidden_states(tmp_path, TEXTS[:2]), strict=True):
        assert one.outputs.data.shape == states.shape and cosines(one.outputs.data, states).min() > EXACT


@pytest.mark.parametrize(("family", "fields"), [("qwen2", {"is_causal": False}), ("t5", {})])
def test_what_sees_both_ways_is_an_encoder(family: str, fields: dict[str, Any], tmp_path: Path) -> None:
    """GTE-Qwen2, whose attention is none of a decoder; and sentence-t5, of which half is read."""
    write_model(family, tmp_path, **fields)
    write_modules(tmp_path, "mean_tokens" if family == "t5" else "lasttoken")
    expected = vectors(tmp_path, SENTENCES, "mean" if family == "t5" else "last")
    with make(tmp_path) as llm:
        assert cosines(embedded(llm, SENTENCES), expected).min() > EXACT


def test_dense_layers_and_fewer_numbers(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file

    write_model("bert", tmp_path)
    write_modules(tmp_path, "cls_token", dense=20, normalize=False, prompts={"query": "query: "})
    weights = load_file(tmp_path / "2_Dense" / "model.safetensors")

    def dense(texts: list[str]) -> np.ndarray:
        states = torch.from_numpy(np.stack([one[0] for one in hidden_states(tmp_path, texts)]))
        made: np.ndarray = torch.tanh(states @ weights["linear.weight"].T + weights["linear.bias"]).numpy()
        return made

    with make(tmp_path) as llm:
        assert np.abs(embedded(llm, SENTENCES) - dense(SENTENCES)).max() < 1e-5
        asked = embedded(llm, SENTENCES, prompt_name="query", dimensions=6, normalize=True)
        with pytest.raises(ValueError, match="dimensions: 21 is more than the 20 numbers"):
            embedded(llm, SENTENCES, dimensions=21)
    wanted = dense([f"query: {sentence}" for sentence in SENTENCES])[:, :6]
    assert cosines(asked, wanted).min() > EXACT and np.allclose(np.linalg.norm(asked, axis=1), 1)


def test_dense_layers_behind_several_modes(tmp_path: Path) -> None:
    """They take what several modes make of all tokens, and no token's state alone."""
    import torch
    from safetensors.torch import load_file

    write_model("bert", tmp_path)
    write_modules(tmp_path, "cls_token", dense=20, normalize=False, also="mean_tokens")
    weights = load_file(tmp_path / "2_Dense" / "model.safetensors")
    both = np.stack([np.concatenate([one[0], one.mean(0)]) for one in hidden_states(tmp_path, SENTENCES)])
    wanted = torch.tanh(torch.from_numpy(both) @ weights["linear.weight"].T + weights["linear.bias"]).numpy()
    with make(tmp_path) as llm:
        assert np.abs(embedded(llm, SENTENCES) - wanted).max() < 1e-5
        with pytest.raises(ValueError, match=r"token_embed cannot be had of this model; it has embed\.$"):
            llm.encode(SENTENCES[0], PoolingParams(task="token_embed"), use_tqdm=False)
    with pytest.raises(ConfigError, match=r"2_Dense/config\.json says in_features = 64; what comes has 32 numbers"):
        make(tmp_path, pooler_config={"pooling_type": "MEAN"})


@pytest.mark.parametrize("family", ["bert", "roberta"])
def test_a_cross_encoder_scores_pairs(family: str, tmp_path: Path) -> None:
    """What tells the second text apart goes with it where the model has that."""
    write_model(family, tmp_path, "SequenceClassification", labels=1, type_vocab_size=2 if family == "bert" else 1)
    raw = logits(tmp_path, "SequenceClassification", [(SENTENCES[1], text) for text in SENTENCES])
    wanted = 1 / (1 + np.exp(-np.concatenate(raw)))
    with make(tmp_path) as llm:
        found = [one.outputs.score for one in llm.score(SENTENCES[1], SENTENCES, use_tqdm=False)]
        off = llm.score(SENTENCES[1], SENTENCES, pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
        with pytest.raises(ValueError, match="embed cannot be had of this model; it has classify"):
            llm.embed("a", use_tqdm=False)
    assert np.abs(np.array(found) - wanted).max() < 1e-5
    assert np.abs(np.array([one.outputs.score for one in off]) - np.concatenate(raw)).max() < 1e-4


def test_labels_and_rewards_of_a_decoder(tmp_path: Path) -> None:
    write_model("qwen3", tmp_path, "SequenceClassification", labels=3, pad_token_id=383)
    raw = logits(tmp_path, "SequenceClassification", [(text, None) for text in TEXTS])
    expected = np.exp(np.stack(raw))
    expected /= expected.sum(-1, keepdims=True)
    with make(tmp_path) as llm:
        probs = [one.outputs.probs for one in llm.classify(TEXTS, use_tqdm=False)]
        off = PoolingParams(use_activation=False)
        rewards = llm.reward(TEXTS[:3], pooling_params=off, use_tqdm=False)
    assert np.abs(np.array(probs) - expected).max() < 1e-5
    for one, last, text in zip(rewards, raw, TEXTS, strict=False):
        assert one.outputs.data.shape == (len(encode(tmp_path, text)[0]), 3)
        assert np.abs(one.outputs.data[-1] - last).max() < 1e-4


def test_scores_are_calibrated(tmp_path: Path) -> None:
    """Before what makes probabilities of them, and also where nothing does."""
    write_model("qwen2", tmp_path, "SequenceClassification", labels=1, pad_token_id=383)
    (raw,) = logits(tmp_path, "SequenceClassification", [(TEXTS[0], None)])
    with make(tmp_path, pooler_config={"logit_mean": 0.5, "logit_sigma": 4}) as llm:
        (plain,) = llm.classify(TEXTS[0], pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
        (likely,) = llm.classify(TEXTS[0], use_tqdm=False)
        wanted = (float(raw[0]) - 0.5) / 4
        assert plain.outputs.probs == pytest.approx([wanted], abs=1e-5)
        assert likely.outputs.probs == pytest.approx([1 / (1 + np.exp(-wanted))], abs=1e-5)
        rewards = llm.reward(TEXTS[0], pooling_params=PoolingParams(use_activation=False), use_tqdm=False)
        assert rewards[0].outputs.data[-1] == pytest.approx(wanted, abs=1e-5)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"logit_sigma": 0}, "logit_sigma: scores are divided by it"),
        ('{"logit_mean": 1e999}', "Number out of range"),
        ({"logit_mean": "a"}, "logit_mean: Expected `float"),
        ({"logit_mean": 1}, "are of models with scores of labels; BertModel has none"),
    ],
)
def test_a_calibration_that_cannot_be(given: dict[str, Any] | str, said: str, tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    with pytest.raises(ConfigError, match=said):
        make(tmp_path, pooler_config=given)


def test_a_model_that_generates_pools_if_it_is_told_to(tmp_path: Path) -> None:
    write_generating("qwen2", tmp_path)
    write_tokenizer(tmp_path)
    with make(tmp_path, runner="pooling", pooler_config={"seq_pooling_type": "MEAN", "normalize": False}) as llm:
        found = embedded(llm, SENTENCES)
        with pytest.raises(ValueError, match="this model pools"):
            llm.generate("a", use_tqdm=False)
    wanted = np.stack([states.mean(0) for states in hidden_states(tmp_path, SENTENCES)])
    assert np.abs(found - wanted).max() < 1e-4
    with make(tmp_path) as llm, pytest.raises(ValueError, match="runner='pooling'"):
        llm.embed("a", use_tqdm=False)


def write_json(file: Path, value: object) -> None:
    file.write_text(json.dumps(value))


@pytest.mark.parametrize(
    ("file", "value", "text"),
    [
        ("modules.json", [{"path": "", "type": "x.Transformer"}, {"path": "", "type": "x.LSTM"}], "a module LSTM"),
        ("modules.json", [{"path": "../out", "type": "x.Pooling"}], "path = '../out'"),
        ("1_Pooling/config.json", {"pooling_mode_best": True}, "no pooling mode"),
        ("1_Pooling/config.json", {"pooling_mode": "best"}, "pooling_mode = 'best'"),
        ("config_sentence_transformers.json", {"default_prompt_name": "query"}, "default_prompt_name"),
        ("config_sentence_transformers.json", {"prompts": ["a"]}, "prompts"),
        ("sentence_bert_config.json", {"max_seq_length": 0}, "max_seq_length"),
    ],
)
def test_files_that_cannot_be_are_named(file: str, value: object, text: str, tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    write_modules(tmp_path)
    write_json(tmp_path / file, value)
    with pytest.raises(ConfigError) as refused:
        make(tmp_path)
    assert file.split("/")[-1] in str(refused.value) and text in str(refused.value)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"device": "cuda", "quantization": "int8"}, "--device cuda"),
        ({"deterministic": True}, "--deterministic"),
        ({"convert": "classify"}, "--convert classify: BertModel has no head"),
        (
            {"pooler_config": {"task": "classify"}},
            "--pooler-config: task: classify cannot be had of this model; it has",
        ),
        ({"pooler_config": {"dimensions": 33}}, "--pooler-config: dimensions: 33 is more than the 32"),
        ({"pooler_config": {"pooling_type": "BEST"}}, "--pooler-config: pooling_type: BEST is none of"),
        ({"pooler_config": {"step_tag": 3}}, "--pooler-config: step_tag is none of"),
        ({"hf_overrides": {"matryoshka_dimensions": [16, "8"]}}, "matryoshka_dimensions"),
    ],
)
def test_options_that_cannot_be_are_named(options: dict[str, Any], text: str, tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    with pytest.raises(ConfigError) as refused:
        make(tmp_path, **options)
    assert text in str(refused.value)


def test_how_prompts_are_tokenised(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    with make(tmp_path) as llm:
        text, how = SENTENCES[2], {"truncation": True, "max_length": 6}
        whole, cut = (llm.embed(text, use_tqdm=False, tokenization_kwargs=given)[0] for given in ({}, how))
        assert cut.prompt_token_ids == [*whole.prompt_token_ids[:5], whole.prompt_token_ids[-1]]
        assert llm.encode(text, use_tqdm=False, tokenization_kwargs=how)[0].prompt_token_ids == cut.prompt_token_ids
        bare = llm.embed(text, use_tqdm=False, tokenization_kwargs={"add_special_tokens": False})[0]
        assert bare.prompt_token_ids == whole.prompt_token_ids[1:-1]
        scored = llm.score(text, SENTENCES[0], use_tqdm=False, tokenization_kwargs=how)[0]
        assert len(scored.prompt_token_ids) == 12


def test_one_of_its_tasks_is_served_alone(tmp_path: Path) -> None:
    write_model("qwen2", tmp_path, "SequenceClassification", 2)
    with make(tmp_path, pooler_config={"task": "token_classify"}) as llm:
        [found] = llm.encode(SENTENCES[1], use_tqdm=False)
        assert found.outputs.data.shape == (len(found.prompt_token_ids), 2)
        with pytest.raises(ValueError, match="classify cannot be had of this model; it has token_classify"):
            llm.classify(SENTENCES[1], use_tqdm=False)
