"""Hidden states of each family of encoders are those of transformers, each text alone; and so are scores of heads."""

from __future__ import annotations

import copy
import json
import logging
from functools import wraps
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from actorserve.actors.model.info import ModelInfo, resolve_model
from actorserve.actors.options.config import Config, ConfigError, make_config
from actorserve.actors.worker.pooling.divided import by_length
from actorserve.actors.worker.pooling.encoder import Encoder, Text, Way
from actorserve.actors.worker.pooling.load import load_encoder
from tests.support.models.embedders import (
    FAMILIES,
    SENTENCES,
    TINY,
    cosines,
    encode,
    hidden_states,
    logits,
    write_model,
)
from tests.support.selection import slow

ALIKE = ("xlm-roberta", "camembert", "electra")  # as roberta, and bert
DIVIDED = ("mpnet", "deberta-v2")  # whose attention is their own
PAIRS: list[tuple[str, str | None]] = [(SENTENCES[1], SENTENCES[0]), (SENTENCES[4], SENTENCES[2]), (SENTENCES[0], None)]


def options(folder: Path, **fields: object) -> tuple[Config, ModelInfo]:
    given = {"model": str(folder), "device": "cpu", "runner": "pooling", "dtype": "float32", **fields}
    config = make_config({"model_impl": "transformers", **given})
    return config, resolve_model(config)


def load(folder: Path, **fields: object) -> Encoder:
    config, info = options(folder, **fields)
    assert info.pooling is not None
    return load_encoder(config, info, info.pooling)


def text(folder: Path, first: str, second: str | None = None) -> Text:
    ids, types = encode(folder, first, second)
    return Text(torch.tensor(ids), types.index(1) if 1 in types else 0)


@pytest.mark.parametrize("family", [*(name for name in FAMILIES if name not in ALIKE), *slow(*ALIKE)])
def test_hidden_states_are_those_of_each_text_alone(family: str, tmp_path: Path) -> None:
    write_model(family, tmp_path)
    with torch.inference_mode():
        model = load(tmp_path)
        found = model.hidden([text(tmp_path, sentence) for sentence in SENTENCES])
    assert model.way is (Way.DIVIDED if family in DIVIDED else Way.FLAT)
    expected = hidden_states(tmp_path, SENTENCES)
    for mine, theirs in zip(found, expected, strict=True):
        assert np.abs(mine.numpy() - theirs).max() < 1e-4
        assert cosines(mine.mean(0), theirs.mean(0)) > 0.99999


@pytest.mark.parametrize("family", ["modernbert", "gemma3_text"])
def test_frequencies_of_rotations_stay_in_float32(family: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a processor multiplies bfloat16 the rest is in it."""
    write_model(family, tmp_path)
    monkeypatch.setattr("actorserve.actors.worker.pooling.load.float_on_cpu", lambda config, stored: "bfloat16")
    model = load(tmp_path, dtype="bfloat16").model
    frequencies = {name: one.dtype for name, one in model.named_buffers() if "inv_freq" in name}
    assert frequencies and set(frequencies.values()) == {torch.float32}
    assert {one.dtype for one in model.parameters()} == {torch.bfloat16}


def test_a_bias_by_distance_is_no_longer_than_a_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """That of a whole row would be as large as the square of all tokens of a step."""
    write_model("t5", tmp_path)
    kind: Any = transformers.models.t5.modeling_t5.T5Attention
    sizes: list[tuple[int, int]] = []
    own = kind.compute_bias

    def noted(layer: Any, queries: int, keys: int, **more: Any) -> Any:
        sizes.append((queries, keys))
        return own(layer, queries, keys, **more)

    monkeypatch.setattr(kind, "compute_bias", noted)
    with torch.inference_mode():
        model = load(tmp_path)
        texts = [text(tmp_path, sentence) for sentence in SENTENCES]
        sizes.clear()
        model.hidden(texts)
    longest = max(len(one.ids) for one in texts)
    assert model.way is Way.FLAT and sizes == [(longest, longest)]


@pytest.mark.parametrize(
    "family", ["bert", "roberta", "distilbert", "deberta-v2", "modernbert", *slow("albert", "electra")]
)
def test_a_head_sees_texts_side_by_side(family: str, tmp_path: Path) -> None:
    """Those of like lengths; pairs too, whose texts are told apart where the model does that."""
    write_model(family, tmp_path, "SequenceClassification")
    with torch.inference_mode():
        model = load(tmp_path)
        texts = [text(tmp_path, *pair) for pair in PAIRS]
        states, ids = model.hidden(texts), [own.ids for own in texts]
        with patch.object(model.model, "forward", wraps=model.model.forward) as asked:
            found = model.scores(states, ids)
        assert asked.call_count == len(by_length([len(one) for one in ids])) < len(ids)
    for mine, theirs in zip(found, logits(tmp_path, "SequenceClassification", PAIRS), strict=True):
        assert np.abs(mine.numpy() - theirs).max() < 1e-4


@pytest.mark.parametrize("fails", [False, True])
def test_a_head_that_other_texts_change_sees_one_at_a_time(
    fails: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_model("bert", tmp_path, "SequenceClassification")
    own = transformers.BertForSequenceClassification.forward

    @wraps(own)
    def forward(self: Any, input_ids: Any, **given: Any) -> Any:
        out = own(self, input_ids, **given)
        if fails and len(input_ids) > 1:
            raise ValueError("one at a time")
        out.logits += len(input_ids)
        return out

    monkeypatch.setattr(transformers.BertForSequenceClassification, "forward", forward)
    with torch.inference_mode():
        model = load(tmp_path)
        texts = [text(tmp_path, *pair) for pair in PAIRS]
        found = model.scores(model.hidden(texts), [own.ids for own in texts])
    assert not model.scores_together
    for mine, theirs in zip(found, logits(tmp_path, "SequenceClassification", PAIRS), strict=True):
        assert np.abs(mine.numpy() - theirs).max() < 1e-4


def test_a_head_of_tokens(tmp_path: Path) -> None:
    write_model("bert", tmp_path, "TokenClassification")
    with torch.inference_mode():
        model = load(tmp_path)
        texts = [text(tmp_path, *pair) for pair in PAIRS]
        found = model.scores(model.hidden(texts), [own.ids for own in texts])
    for mine, theirs in zip(found, logits(tmp_path, "TokenClassification", PAIRS), strict=True):
        assert tuple(mine.shape) == theirs.shape
        assert np.abs(mine.numpy() - theirs).max() < 1e-4


OWN_CODE = """
from transformers import BertConfig, BertModel

class OwnConfig(BertConfig):
    model_type = "own"

class OwnModel(BertModel):
    config_class = OwnConfig
"""


@pytest.mark.parametrize("load_format", ["auto", "dummy"])
def test_code_beside_the_weights(load_format: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))
    folder = tmp_path / "own"
    write_model("bert", folder)
    values = json.loads((folder / "config.json").read_text())
    places = {"AutoConfig": "own.OwnConfig", "AutoModel": "own.OwnModel"}
    values |= {"architectures": ["OwnModel"], "model_type": "own", "auto_map": places}
    (folder / "config.json").write_text(json.dumps(values))
    (folder / "own.py").write_text(OWN_CODE)
    assert load(folder, load_format=load_format, trust_remote_code=True)
    with pytest.raises(ConfigError, match="--trust-remote-code runs the code beside its weights"):
        load(folder, load_format=load_format)


def test_int8_is_near(tmp_path: Path) -> None:
    write_model("bert", tmp_path, hidden_size=64, intermediate_size=256)
    with torch.inference_mode():
        found = load(tmp_path, quantization="int8").hidden([text(tmp_path, one) for one in SENTENCES])
    expected = hidden_states(tmp_path, SENTENCES)
    near = cosines([one.mean(0) for one in found], [one.mean(0) for one in expected])
    assert 0.99 < near.min() < 1 - 1e-9  # and not the same


def test_a_way_that_is_wrong_is_not_taken(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """DeBERTa's attention adds what it knows of places in the row, and says so in the log."""
    write_model("deberta-v2", tmp_path)
    with caplog.at_level(logging.INFO), torch.inference_mode():
        load(tmp_path)
    assert "divided" in caplog.text and "not flat" in caplog.text


@pytest.mark.parametrize("family", DIVIDED)
def test_texts_of_several_rows_whose_attention_is_the_models_own(family: str, tmp_path: Path) -> None:
    """A convolution behind the first layer, too; texts of any length beside others that fill a row."""
    fields: dict[str, Any] = {"conv_kernel_size": 3} if family == "deberta-v2" else {}
    write_model(family, tmp_path, **fields)
    with torch.inference_mode():
        model = load(tmp_path)
        texts = [Text(torch.arange(size) % 40 + 5) for size in (60, 1, 3, 60, *[50] * 9, 2)]
        together = model.hidden(texts)
        assert model.way is Way.DIVIDED
        for own, made in zip(texts, together, strict=True):
            (alone,) = model.hidden([own])
            model.use(Way.ALONE)
            (theirs,) = model.hidden([own])
            model.use(Way.DIVIDED)
            assert torch.allclose(made, theirs, atol=1e-5) and torch.allclose(alone, theirs, atol=1e-5)


def test_a_text_that_padding_changes_is_computed_alone(tmp_path: Path) -> None:
    """MobileBERT's embeddings see what stands behind it."""
    FAMILIES["mobilebert"] = {**TINY, "embedding_size": 32, "true_hidden_size": 32, "intra_bottleneck_size": 32}
    try:
        write_model("mobilebert", tmp_path)
    finally:
        del FAMILIES["mobilebert"]
    with torch.inference_mode():
        model = load(tmp_path)
        found = model.hidden([text(tmp_path, SENTENCES[0]), text(tmp_path, SENTENCES[0] + " a")])
    assert model.way is Way.ALONE
    for mine, theirs in zip(found, hidden_states(tmp_path, [SENTENCES[0], SENTENCES[0] + " a"]), strict=True):
        assert np.abs(mine.numpy() - theirs).max() < 1e-4


def write_gte(folder: Path, head: str = "", **fields: object) -> float:
    """As Alibaba has published them, its frequencies scaled by NTK; what all of them are divided by then."""
    write_model("gte", folder, head, type_vocab_size=2)
    about = json.loads((folder / "config.json").read_text())
    del about["rope_parameters"]
    about |= {"model_type": "new", "architectures": [f"New{f'For{head}' if head else 'Model'}"]}
    about |= {"auto_map": {"AutoModel": "there--is/none"}, "rope_theta": 20_000, "rope_scaling": {"type": "ntk"}}
    about |= {"position_embedding_type": "rope", "layer_norm_type": "layer_norm", "pack_qkv": True, **fields}
    about["rope_scaling"]["factor"] = 8.0
    (folder / "config.json").write_text(json.dumps(about))
    tensors = load_file(folder / "model.safetensors")
    named = {f"new.{name.removeprefix('gte.')}": tensor for name, tensor in tensors.items()}
    save_file(
        {name.replace("new.classifier", "classifier"): one for name, one in named.items()}, folder / "model.safetensors"
    )
    return float(8.0 ** (2 / 8))


@pytest.mark.parametrize("head", ["", "SequenceClassification"])
def test_gte_as_it_is_published(head: str, tmp_path: Path) -> None:
    """Named "new", with code of its own beside it that is not run."""
    lower = write_gte(tmp_path, head)
    with torch.inference_mode():
        model = load(tmp_path)
        own = [text(tmp_path, *pair) for pair in PAIRS]
        found = model.hidden(own)
        scores = model.scores(found, [one.ids for one in own]) if head else []
        shape: Any = copy.deepcopy(model.model.config)
        shape._attn_implementation = "eager"
        reference = transformers.GteModel(shape, add_pooling_layer=bool(head)).eval()
        tensors = load_file(tmp_path / "model.safetensors")
        take_gte(reference, {name.removeprefix("new."): one for name, one in tensors.items()})
        reference.rotary_emb.inv_freq = (20_000 * 8.0) ** (-torch.arange(0, 8, 2) / 8) / lower
        for one, mine, number in zip(own, found, range(len(own)), strict=True):
            kinds = torch.zeros_like(one.ids)
            kinds[one.second or len(kinds) :] = 1
            out = reference(input_ids=one.ids[None], token_type_ids=kinds[None])
            assert (mine - out.last_hidden_state[0]).abs().max() < 1e-4
            if head:
                wanted = torch.nn.functional.linear(
                    out.pooler_output[0], tensors["classifier.weight"], tensors["classifier.bias"]
                )
                assert (scores[number] - wanted).abs().max() < 1e-4


def take_gte(model: torch.nn.Module, stored: dict[str, torch.Tensor]) -> None:
    """Weights by their published names: q, k and v are one, and up stands before gate."""
    taken = {}
    for name, tensor in stored.items():
        name = name.replace("encoder.layer", "layers").replace("attention.", "self_attn.")
        name = name.replace("attn_ln", "post_attention_layernorm").replace("mlp_ln", "post_mlp_layernorm")
        if "qkv_proj" in name:
            for part, own in zip("qkv", tensor.chunk(3), strict=True):
                taken[name.replace("qkv", part)] = own
        elif "up_gate_proj" in name:
            for part, own in zip(("up", "gate"), tensor.chunk(2), strict=True):
                taken[name.replace("up_gate", part)] = own
        elif not name.startswith("classifier"):
            taken[name] = tensor
    model.load_state_dict(taken)


def test_gte_that_is_not_computed_is_refused(tmp_path: Path) -> None:
    write_gte(tmp_path, logn_attention_scale=True)
    with pytest.raises(ConfigError, match="logn_attention_scale = True; False"):
        load(tmp_path)


def test_texts_of_like_lengths_go_together() -> None:
    sizes = [3, 100, 4, 90, 3, 50]
    groups = by_length(sizes)
    assert sorted(index for group in groups for index in group) == list(range(len(sizes)))
    for group in groups:
        own = [sizes[index] for index in group]
        assert max(own) * len(own) <= 1.25 * sum(own)
    assert len(groups) < len(sizes)
