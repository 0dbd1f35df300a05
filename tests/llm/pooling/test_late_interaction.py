"""Models that have vectors of tokens alone, as ColBERT's: how near two texts are is said by their tokens."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from actorserve import LLM
from tests.llm.pooling.test_pooling import make
from tests.support.models.embedders import SENTENCES, hidden_states, write_model, write_modules

QUERY, DOCUMENTS = SENTENCES[1], [SENTENCES[0], SENTENCES[2]]


def nearness(query: np.ndarray, document: np.ndarray) -> float:
    """Of unit vectors the product with the nearest, of each token of the query."""
    own, other = (one / np.linalg.norm(one, axis=1, keepdims=True) for one in (query, document))
    return float(sum(max(float(one @ two) for two in other) for one in own))


def scores(llm: LLM) -> list[float]:
    return [one.outputs.score for one in llm.score(QUERY, DOCUMENTS, use_tqdm=False)]


def test_a_model_that_is_asked_for_its_tokens_alone(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    query, *documents = hidden_states(tmp_path, [QUERY, *DOCUMENTS])
    with make(tmp_path, pooler_config={"task": "token_embed"}) as llm:
        assert scores(llm) == pytest.approx([nearness(query, one) for one in documents], rel=1e-4)
        (same,) = llm.score(QUERY, QUERY, use_tqdm=False)
        assert same.outputs.score == pytest.approx(len(query), rel=1e-4)
        with pytest.raises(ValueError, match="embed cannot be had of this model; it has token_embed"):
            llm.embed(QUERY, use_tqdm=False)


def write_colbert(folder: Path, **dense: object) -> None:
    """As PyLate writes one: a linear layer behind the model, and nothing that pools."""
    write_model("bert", folder)
    write_modules(folder, dense=12, normalize=False)
    listed = json.loads((folder / "modules.json").read_text())
    kept = [one for one in listed if not one["type"].endswith("Pooling")]
    kept[1]["type"] = "pylate.models.Dense.Dense"
    (folder / "modules.json").write_text(json.dumps(kept))
    about = folder / "2_Dense" / "config.json"
    linear = {"activation_function": "torch.nn.modules.linear.Identity", **dense}
    about.write_text(json.dumps({**json.loads(about.read_text()), **linear}))


def test_a_model_of_pylates(tmp_path: Path) -> None:
    from safetensors.numpy import load_file

    write_colbert(tmp_path)
    layer = load_file(tmp_path / "2_Dense" / "model.safetensors")
    found = [
        one @ layer["linear.weight"].T + layer["linear.bias"] for one in hidden_states(tmp_path, [QUERY, *DOCUMENTS])
    ]
    with make(tmp_path) as llm:
        assert scores(llm) == pytest.approx([nearness(found[0], one) for one in found[1:]], rel=1e-4)
        (rows,) = llm.encode(QUERY, use_tqdm=False)
        assert rows.outputs.data == pytest.approx(found[0], abs=1e-5)
    with make(tmp_path, pooler_config={"pooling_type": "MEAN"}) as llm:
        (vector,) = llm.embed(QUERY, use_tqdm=False)
        assert len(vector.outputs.embedding) == 12


@pytest.mark.parametrize("name", ["HF_ColBERT", "ColBERTModel"])
@pytest.mark.parametrize("form", ["safetensors", "pickled", "several files"])
def test_a_model_of_its_authors(tmp_path: Path, name: str, form: str) -> None:
    """The layer lies among the weights, and config.json names nothing but the architecture."""
    import torch
    from safetensors.torch import load_file, save_file

    write_model("bert", tmp_path)
    hidden = hidden_states(tmp_path, [QUERY, *DOCUMENTS])
    about = tmp_path / "config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "architectures": [name]}))
    file = tmp_path / "model.safetensors"
    layer = torch.randn(12, hidden[0].shape[1], generator=torch.Generator().manual_seed(3))
    weights = {f"bert.{own}": tensor for own, tensor in load_file(file).items()} | {"linear.weight": layer}
    if form == "pickled":
        file.unlink()
        torch.save(weights, tmp_path / "pytorch_model.bin")
    elif form == "several files":
        file.unlink()
        parts = [f"model-0000{number}-of-00002.safetensors" for number in (1, 2)]
        save_file({"linear.weight": weights.pop("linear.weight")}, tmp_path / parts[1], {"format": "pt"})
        save_file(weights, tmp_path / parts[0], {"format": "pt"})
        places = dict.fromkeys(weights, parts[0]) | {"linear.weight": parts[1]}
        index = {"metadata": {}, "weight_map": places}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file(weights, file, {"format": "pt"})
    found = [one @ layer.numpy().T for one in hidden]
    with make(tmp_path) as llm:
        assert scores(llm) == pytest.approx([nearness(found[0], one) for one in found[1:]], rel=1e-4)
        with pytest.raises(ValueError, match="embed cannot be had of this model; it has token_embed"):
            llm.embed(QUERY, use_tqdm=False)


def test_a_model_of_its_authors_without_the_layer(tmp_path: Path) -> None:
    write_model("bert", tmp_path)
    about = tmp_path / "config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "architectures": ["HF_ColBERT"]}))
    with pytest.raises(ValueError, match=r"lacks linear\.weight"):
        make(tmp_path)


@pytest.mark.parametrize(("said", "width"), [({}, 128), ({"dim": 12}, 12)])
def test_a_model_of_its_authors_without_weights(tmp_path: Path, said: dict[str, int], width: int) -> None:
    write_model("bert", tmp_path)
    about = tmp_path / "config.json"
    about.write_text(json.dumps({**json.loads(about.read_text()), "architectures": ["HF_ColBERT"], **said}))
    (tmp_path / "model.safetensors").unlink()
    with make(tmp_path, load_format="dummy") as llm:
        (rows,) = llm.encode(QUERY, use_tqdm=False)
        assert rows.outputs.data.shape[1] == width and np.ptp(rows.outputs.data) > 0


def test_a_layer_beside_which_its_input_goes_on(tmp_path: Path) -> None:
    write_colbert(tmp_path, use_residual=True)
    with pytest.raises(ValueError, match="use_residual = true, which is not supported"):
        make(tmp_path)
