"""Rerankers in GGUF files: XLM-R (bge-reranker and its kin), which such files have as BERT with a head, and Qwen3's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from actorserve import LLM
from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.tokenizers.tokenizer import load_tokenizer
from actorserve.actors.model.vocabularies.proto import read_sentencepiece
from actorserve.actors.options.config import ConfigError, make_config
from actorserve.actors.worker.adapter.verify import randomise
from tests.support.compiler import cache_with_kernels
from tests.support.models.embedders import TINY
from tests.support.models.gguf.encoders import INSIDE
from tests.support.models.gguf.files import CONTROL, NORMAL, UNKNOWN, stored, tiny_fields, tiny_tensors, write

VOCABULARY = Path(__file__).parents[2] / "model" / "vocabularies" / "vocabulary_files" / "unigram.model"
BEGIN, PAD, END, UNK = range(4)
OPTIONS: dict[str, Any] = {
    **{"device": "cpu", "threads": 1, "dtype": "float32", "max_num_seqs": 4},
    "in_process": True,  # processes take ten times as long to start as these models to answer
}
QUERY, TEXTS = "the quick fox", ["a lazy dog and a fox", "hello", "the capital of France is Paris"]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache_with_kernels(tmp_path / "cache")))


def xlm_r(path: Path, ranks: bool = True, **fields: Any) -> Any:
    """transformers' model of a file, which is written: positions begin behind the padding's."""
    from transformers import XLMRobertaConfig, XLMRobertaForSequenceClassification

    pieces = [piece for piece in read_sentencepiece(VOCABULARY, VOCABULARY.read_bytes()).pieces if piece.kind == NORMAL]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", *(piece.text for piece in pieces)]
    sizes = {**TINY, "vocab_size": len(tokens), "type_vocab_size": 1, "pad_token_id": PAD, "num_labels": 1}
    torch.manual_seed(0)
    model = XLMRobertaForSequenceClassification(XLMRobertaConfig(**sizes)).float().eval()
    randomise(model, 1)
    own = {
        **{"block_count": 2, "context_length": 128, "embedding_length": 32, "feed_forward_length": 48},
        **{"attention.head_count": 4, "attention.layer_norm_epsilon": 1e-12, "attention.causal": False},
        **{"pooling_type": 4, **fields},
    }
    words = {
        **{"model": "t5", "tokens": tokens, "scores": [0.0] * 4 + [piece.score for piece in pieces]},
        **{"token_type": [CONTROL] * 3 + [UNKNOWN] + [NORMAL] * len(pieces), "bos_token_id": BEGIN},
        **{"eos_token_id": END, "unknown_token_id": UNK, "padding_token_id": PAD, "seperator_token_id": END},
        **{"add_bos_token": True, "add_eos_token": True, "add_space_prefix": True},
    }
    named = {"general.architecture": "bert", **{f"bert.{name}": value for name, value in own.items()}}
    named |= {f"tokenizer.ggml.{name}": value for name, value in words.items()}
    write(path, named, {name: stored("F32", weight) for name, weight in tensors(model) if ranks or "cls" not in name})
    return model


def tensors(model: Any) -> list[tuple[str, Any]]:
    found = []
    around = {"word_embeddings": "token_embd", "token_type_embeddings": "token_types", "LayerNorm": "token_embd_norm"}
    for name, parameter in model.named_parameters():
        parts, weight = name.split("."), parameter.detach().numpy()
        end = parts[-1]
        if name.startswith("classifier."):
            found.append((f"cls{'.output' if parts[1] == 'out_proj' else ''}.{end}", weight.squeeze()))
        elif "position_embeddings" in name:
            found.append((f"position_embd.{end}", weight[PAD + 1 :]))
        elif parts[1] == "embeddings":
            found.append((f"{around[parts[2]]}.{end}", weight.squeeze()))
        else:
            found.append((f"blk.{parts[3]}.{INSIDE['.'.join(parts[4:-1])]}.{end}", weight))
    return [(name, np.atleast_1d(weight)) for name, weight in found]


def test_scores_of_pairs(tmp_path: Path) -> None:
    """Between two texts what ends one stands twice."""
    model = xlm_r(tmp_path / "reranker.gguf")
    with LLM(str(tmp_path / "reranker.gguf"), **OPTIONS) as llm:
        found = llm.score(QUERY, TEXTS, use_tqdm=False)
    for one in found:
        ids = one.prompt_token_ids
        middle = ids.index(END)
        assert (ids[0], ids[-1]) == (BEGIN, END) and ids[middle : middle + 2] == [END, END] and ids.count(END) == 3
        with torch.inference_mode():
            wanted = model(torch.tensor([ids])).logits.sigmoid()
        assert abs(float(wanted) - one.outputs.score) < 1e-5
    assert len({round(one.outputs.score, 4) for one in found}) == len(TEXTS)


def test_pairs_are_put_together_as_transformers_does_it(tmp_path: Path) -> None:
    from transformers import XLMRobertaTokenizer

    xlm_r(tmp_path / "reranker.gguf")
    ours = load_tokenizer(find_model(make_config({"model": str(tmp_path / "reranker.gguf"), "device": "cpu"})))
    pieces = [piece for piece in read_sentencepiece(VOCABULARY, VOCABULARY.read_bytes()).pieces if piece.kind == NORMAL]
    first = [(text, 0.0) for text in ("<s>", "<pad>", "</s>", "<unk>")]
    theirs = XLMRobertaTokenizer(vocab=[*first, *((piece.text, piece.score) for piece in pieces)])
    for text in (*TEXTS, "two  spaces", " hello</s>there "):
        assert ours.encode(text).ids == theirs(text)["input_ids"], text
        assert ours.encode(QUERY, text).ids == theirs(QUERY, text)["input_ids"], text


def test_vectors_of_a_whole_file(tmp_path: Path) -> None:
    """The same model as one that embeds: its head is not there."""
    model = xlm_r(tmp_path / "model.gguf", ranks=False, pooling_type=2)
    with LLM(str(tmp_path / "model.gguf"), **OPTIONS) as llm:
        found = llm.embed(TEXTS, use_tqdm=False)
    for one in found:
        with torch.inference_mode():
            state = model.roberta(torch.tensor([one.prompt_token_ids])).last_hidden_state[0, 0]
        assert float(torch.cosine_similarity(state, torch.tensor(one.outputs.embedding), 0)) > 0.99999


def test_a_file_that_ranks_without_a_head(tmp_path: Path) -> None:
    path = tmp_path / "bert.gguf"
    xlm_r(path)
    raw = path.read_bytes()
    path.write_bytes(raw.replace(b"cls.output.weight", b"cls.other_.weight"))
    with pytest.raises(ConfigError, match=r"ranks \(bert.pooling_type\), and cls.output.weight is not there"):
        find_model(make_config({"model": str(path), "device": "cpu"}))


def qwen3(path: Path, labels: list[str], head: Any) -> Any:
    """A reranker of one layer that adds nothing to what it reads; returns its embeddings."""
    fields: dict[str, Any] = {"general.architecture": "qwen3", "qwen3.pooling_type": 4, "qwen3.context_length": 1024}
    fields |= {"qwen3.classifier.output_labels": labels, "tokenizer.ggml.bos_token_id": None}
    fields |= {"tokenizer.ggml.tokens": ["a", "b", "ab", *"cde", "yes", "no"], "tokenizer.ggml.token_type": None}
    norms = {f"blk.0.attn_{part}_norm.weight": stored("F32", np.ones(16)) for part in "qk"}
    embeddings = np.random.default_rng(0).standard_normal((8, 32)).astype(np.float32)
    own = norms | {"cls.output.weight": stored("F32", head), "token_embd.weight": stored("F32", embeddings)}
    write(path, tiny_fields(fields), tiny_tensors() | own)
    return embeddings


@pytest.mark.parametrize("labels", [["yes", "no"], ["no", "yes"]])
def test_qwen3_judges_by_two_words(labels: list[str], tmp_path: Path) -> None:
    """By the rows that the file has of them: where embeddings make no logits, it has no others."""
    head = np.random.default_rng(1).normal(0, 0.1, (2, 32)).astype(np.float32)
    embeddings = qwen3(tmp_path / "m.gguf", labels, head)
    with LLM(str(tmp_path / "m.gguf"), **OPTIONS) as llm:
        found = llm.score(QUERY, TEXTS, use_tqdm=False)
    for one in found:
        last = embeddings[one.prompt_token_ids[-1]]
        state = last / np.sqrt((last**2).mean() + 1e-5)
        likelier = float(state @ (head[labels.index("yes")] - head[labels.index("no")]))
        assert abs(1 / (1 + np.exp(-likelier)) - one.outputs.score) < 1e-4


@pytest.mark.parametrize(
    ("labels", "rows", "pooler", "words"),
    [
        (["good", "bad"], 2, "", r"qwen3\.classifier\.output_labels = .* a model that judges by"),
        (["yes", "no"], 3, "", r"has a \[3, 32\] cls\.output\.weight; \[2, 32\] is needed"),
        (["yes", "no"], 2, '{"classifier_from_token": ["a", "b"]}', "a, b: the model's file has rows of yes, no alone"),
        (["yes", "no"], 2, '{"returned_token_ids": [1]}', "1: the model's file has rows of yes, no alone"),
    ],
)
def test_what_qwen3_does_not_judge_by(labels: list[str], rows: int, pooler: str, words: str, tmp_path: Path) -> None:
    qwen3(tmp_path / "m.gguf", labels, np.zeros((rows, 32)))
    with pytest.raises(ConfigError, match=words):
        find_model(make_config({"model": str(tmp_path / "m.gguf"), "device": "cpu", "pooler_config": pooler or None}))


def test_a_reranker_does_not_write(tmp_path: Path) -> None:
    """Who could, as published, may lack the rows of other words here; who cannot says so anywhere."""
    qwen3(tmp_path / "m.gguf", ["yes", "no"], np.zeros((2, 32)))
    words = (
        "--runner generate: the file of this Qwen3ForCausalLM has what it judges by, the rows of yes and no, and does"
    )
    with pytest.raises(ConfigError, match=words):
        find_model(make_config({"model": str(tmp_path / "m.gguf"), "device": "cpu", "runner": "generate"}))


def test_a_word_that_qwen3_judges_by(tmp_path: Path) -> None:
    qwen3(tmp_path / "m.gguf", ["yes", "no"], np.zeros((2, 32)))
    pooler = '{"classifier_from_token": ["yes"]}'
    model = find_model(make_config({"model": str(tmp_path / "m.gguf"), "device": "cpu", "pooler_config": pooler}))
    assert model.pooling is not None and (model.pooling.tokens, model.pooling.rows) == (["yes"], ["yes", "no"])
