"""Models that see whose text part is computed by layers of transformers: where they see, and what `check` counts."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from actorserve.actors.media.processors import make_processors
from actorserve.actors.model.checks.combinations import check_vision
from actorserve.actors.model.info import resolve_model, with_tokenizer
from actorserve.actors.model.quantization import METHODS
from actorserve.actors.model.vision import adapted
from actorserve.actors.options.config import ConfigError
from actorserve.actors.worker.inspection import inspect
from actorserve.actors.worker.vision.tower import load_tower
from tests.support.models.vision.families import ADAPTED, DIVIDED, EVERY, checkpoint
from tests.support.models.vision.reference import Reference
from tests.worker.driver import config_for

FLOAT = 4


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapted")


@pytest.mark.parametrize("family", ADAPTED)
def test_where_it_sees(family: str, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = checkpoint(family, root)

    def seen(**options: Any) -> bool:
        info = resolve_model(config_for(folder, **options))
        own = ["image", *(["video"] if EVERY[family].film else []), *(["audio"] if family == "gemma4" else [])]
        assert info.media == ([] if info.vision is None else own)
        return info.vision is not None

    monkeypatch.setattr(adapted, "may_have_gpu", lambda: False)
    assert seen() and seen(speculative_config=json.dumps({"method": "ngram", "num_speculative_tokens": 2}))
    assert seen(tensor_parallel_size=2) and not seen(pipeline_parallel_size=2)
    assert not seen(model_impl="transformers")
    assert not seen(speculative_config=json.dumps({"model": str(folder), "num_speculative_tokens": 2}))
    monkeypatch.setattr(adapted, "may_have_gpu", lambda: True)
    assert seen() == family.startswith("gemma4") and seen(device="cpu")
    folder = Path(shutil.copytree(folder, root / f"{family}-alone"))
    for name in ("processor_config.json", "preprocessor_config.json"):
        assert seen(device="cpu")
        (folder / name).unlink()
    assert not seen(device="cpu")


@pytest.mark.parametrize(("of_pictures", "of_frames", "wanted"), [(70, None, 70), (280, 140, 280), (70, 280, 280)])
def test_a_step_has_room_for_the_largest_picture_and_frame(
    of_pictures: int, of_frames: int | None, wanted: int, root: Path
) -> None:
    """Where their tokens see one another: one that does not fit would wait for ever."""
    folder = Path(shutil.copytree(checkpoint("gemma4_together", root), root / f"{of_pictures}-{of_frames}"))
    pixels = json.loads((folder / "preprocessor_config.json").read_text())
    (folder / "preprocessor_config.json").write_text(json.dumps({**pixels, "max_soft_tokens": of_pictures}))
    if of_frames is not None:
        (folder / "video_preprocessor_config.json").write_text(json.dumps({"max_soft_tokens": of_frames}))
    info = resolve_model(config_for(folder, device="cpu"))
    assert info.vision is not None and info.vision.span == wanted
    check_vision(config_for(folder, device="cpu", max_num_batched_tokens=wanted), info, info.vision)
    with pytest.raises(ConfigError, match=f"set it to {wanted} or more"):
        check_vision(config_for(folder, device="cpu", max_num_batched_tokens=wanted - 1), info, info.vision)


@pytest.mark.parametrize(
    ("lacked", "left"), [(["<|video|>"], ["image", "audio"]), (["<|video|>", "<|audio|>"], ["image"])]
)
def test_what_the_tokenizer_has_no_token_for_is_not_taken(lacked: list[str], left: list[str], root: Path) -> None:
    """As of checkpoints that are older than their family's films."""
    folder = Path(shutil.copytree(checkpoint("gemma4", root), root / "-".join(left)))
    words = json.loads((folder / "tokenizer.json").read_text())
    words["added_tokens"] = [token for token in words["added_tokens"] if token["content"] not in lacked]
    (folder / "tokenizer.json").write_text(json.dumps(words))
    config = config_for(folder, device="cpu")
    info = with_tokenizer(config, resolve_model(config))
    assert info.media == left and list(make_processors(config, info)) == left


@pytest.mark.parametrize("family", ADAPTED)
def test_what_check_counts_is_the_text_part_and_the_tower_in_floats(family: str, root: Path) -> None:
    folder = checkpoint(family, root)

    def counted(name: str = "weights_bytes", **options: Any) -> int:
        config = config_for(folder, device="cpu", **options)
        facts = {name: value for part in inspect(config, resolve_model(config)) for name, value in part.items()}
        return int(facts[name])

    whole = Reference(family, folder).model
    here = [weight.numel() for weight in whole.parameters()]
    head = whole.get_output_embeddings()
    tied = head.weight.numel() if head.weight is whole.get_input_embeddings().weight else 0
    floats = counted()
    assert floats == FLOAT * (sum(here) + tied)
    if family in DIVIDED:
        assert counted("parameters") == counted("parameters", tensor_parallel_size=2)
        assert FLOAT * sum(here) // 2 < counted(tensor_parallel_size=2) < floats
    text = whole.model.language_model
    products = [part.weight for part in (*text.modules(), head) if isinstance(part, nn.Linear)]
    experts = [weight for weight in text.parameters() if weight.dim() == 3]
    multiplied = sum(weight.numel() for weight in (*products, *experts))
    each = METHODS["int8"].bytes_per_weight
    assert each is not None
    assert floats - counted(quantization="int8") == pytest.approx(multiplied * (FLOAT - each), abs=2)


@pytest.mark.parametrize("family", ["mistral3", "mistral_large4"])
def test_a_picture_of_one_embedding(family: str, root: Path) -> None:
    """transformers' own function takes its row for several numbers."""
    folder = checkpoint(family, root)
    config = config_for(folder, device="cpu")
    tower: Any = load_tower(config, resolve_model(config), torch.float32)
    side = tower.config.vision_config.patch_size * tower.config.spatial_merge_size
    torch.manual_seed(0)
    one, other = torch.rand(2, 3, side, side)
    made = [
        tower.get_image_features(part[None], torch.tensor([[side, side]])).pooler_output[0] for part in (one, other)
    ]
    both = tower.get_image_features(torch.stack([one, other]), torch.tensor([[side, side]] * 2)).pooler_output
    assert [tuple(rows.shape) for rows in made] == [(1, tower.config.text_config.hidden_size)] * 2
    assert not torch.equal(*made)
    torch.testing.assert_close(torch.cat(made), torch.cat(both))


def test_the_bounds_of_clipped_layers_are_the_checkpoints(root: Path) -> None:
    folder = checkpoint("gemma4", root)
    config = config_for(folder, device="cpu")
    tower = load_tower(config, resolve_model(config), torch.float32)
    bounds = {name: float(value) for name, value in tower.named_buffers() if name.endswith(("_min", "_max"))}
    assert any(name.startswith("audio_tower") for name in bounds)
    assert all(value == (-4.0 if name.endswith("_min") else 4.0) for name, value in bounds.items())
