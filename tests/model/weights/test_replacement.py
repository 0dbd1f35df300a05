"""Other weights for a model whose config.json is read otherwise than it lies there."""

from __future__ import annotations

import json
import logging
import mmap
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from actorserve.actors.model.checks.model import find_model
from actorserve.actors.model.info import DEMO_FOLDER, ModelInfo
from actorserve.actors.model.weights.places import weight_files
from actorserve.actors.model.weights.replacement import find_weights
from actorserve.actors.options.config import Config, ConfigError, PassingError, make_config
from actorserve.actors.protocol.topics.administration import Unloadable
from actorserve.actors.worker import parked
from actorserve.actors.worker.parked import load_weights
from actorserve.shm.kv_map.layout import HEADER_BYTES
from actorserve.shm.kv_map.sleep import SleepState, SleepWord
from actorserve.shm.weights import WeightsRecord
from tests.support.models.dual_encoders import write_clip_modules, write_dual_encoder
from tests.support.models.gguf.files import tiny_model

EPSILON = 0.25


@pytest.fixture
def folders(tmp_path: Path, cache: Path) -> Path:
    for name in ("model", "others/new", "others/shape"):
        shutil.copytree(DEMO_FOLDER, tmp_path / name)
    other = tmp_path / "others" / "shape" / "config.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"rope_theta": 7.0}))
    return tmp_path


def served(folders: Path) -> tuple[Config, ModelInfo]:
    given: dict[str, Any] = {"model": str(folders / "model"), "hf_overrides": json.dumps({"rms_norm_eps": EPSILON})}
    config = make_config(given | {"weights_folder": [str(folders / "others")], "device": "cpu"})
    model = find_model(config)
    assert Path(model.folder) != folders / "model"
    return config, model


def test_like_is_compared_with_like(folders: Path) -> None:
    config, model = served(folders)
    assert find_weights(config, model, str(folders / "others" / "new")) == str(folders / "others" / "new")
    assert find_weights(config, model, str(folders / "model")) == find_weights(config, model, "") == ""
    with pytest.raises(ConfigError, match=r"is another model: its config.json differs in rope_theta$"):
        find_weights(config, model, str(folders / "others" / "shape"))


def test_another_model_is_told_as_such_whatever_else_is_wrong_with_it(folders: Path) -> None:
    config, model = served(folders)
    other = folders / "others" / "shape" / "config.json"
    other.write_text(json.dumps(json.loads(other.read_text()) | {"vocab_size": "many"}))
    with pytest.raises(ConfigError, match=r"is another model: its config.json differs in rope_theta, vocab_size$"):
        find_weights(config, model, str(other.parent))


def test_files_with_other_names_in_the_models_own_folder_are_read(folders: Path) -> None:
    """As a trainer writes another number of parts; what is served is a folder of links to those before."""
    config, model = served(folders)
    own = folders / "model"
    (own / "model.safetensors").rename(own / "model-00001-of-00001.safetensors")
    assert find_weights(config, model, "") == ""
    assert [file.name for file in weight_files(Path(model.folder))] == ["model-00001-of-00001.safetensors"]
    text = (own / "config.json").read_text()
    (own / "config.json").write_text(text.rstrip() + "\n\n")
    assert find_weights(config, model, "") == str(own), "links are made anew beside a new config.json"
    assert loaded(config, model, own) != Path(model.folder)


@pytest.mark.parametrize("overrides", [None, "{}"])
def test_a_gguf_file_that_its_folder_names(overrides: str | None, tmp_path: Path, cache: Path) -> None:
    tiny_model(tmp_path)
    config = make_config({"model": str(tmp_path), "hf_overrides": overrides, "device": "cpu"})
    model = find_model(config)
    assert Path(model.folder).is_relative_to(cache)
    assert find_weights(config, model, "") == find_weights(config, model, str(tmp_path)) == ""


@pytest.mark.parametrize("name", ["modules.json", "0_CLIPModel/config.json"])
def test_a_model_in_a_folder_inside(name: str, tmp_path: Path, cache: Path) -> None:
    """As it is trained on, its small files are written again."""
    own = tmp_path / "model"
    write_dual_encoder("clip", own / "0_CLIPModel")
    write_clip_modules(own, "Normalize")
    config = make_config({"model": str(own), "hf_overrides": '{"initializer_factor": 2.0}', "device": "cpu"})
    model = find_model(config)
    text = (own / name).read_text()
    (own / name).write_text(text.rstrip() + "\n\n")
    assert find_weights(config, model, "") == str(own)
    found = loaded(config, model, own)
    assert found != Path(model.folder)
    assert (found / "model.safetensors").resolve() == own / "0_CLIPModel" / "model.safetensors"


def loaded(config: Config, model: ModelInfo, folder: Path) -> Path:
    """The folder of which a worker makes the model with these weights."""
    files = {"weights": WeightsRecord.create(1)}
    WeightsRecord(files["weights"], 0).store(str(folder))
    log, spec = logging.getLogger("worker"), SimpleNamespace(engine=0)
    context: Any = SimpleNamespace(config=config, model=model, files=files, log=log, spec=spec)
    found = load_weights(context, lambda given: Path(given.model.folder))
    assert isinstance(found, Path)
    return found


def test_a_worker_reads_them_as_the_model_before(folders: Path) -> None:
    found = loaded(*served(folders), folders / "others" / "new")
    assert json.loads((found / "config.json").read_text())["rms_norm_eps"] == EPSILON
    assert (found / "model.safetensors").resolve() == folders / "others" / "new" / "model.safetensors"


def test_a_folder_of_links_has_other_weights_once_they_lead_elsewhere(folders: Path) -> None:
    """As a trainer has it, step by step; config.json stays the same file."""
    config, model = served(folders)
    link = folders / "others" / "new" / "model.safetensors"
    for step in ("step-1", "step-2"):
        (folders / step).mkdir()
        weights = shutil.copy(DEMO_FOLDER / link.name, folders / step)
        link.unlink()
        link.symlink_to(weights)
        assert (loaded(config, model, link.parent) / link.name).resolve() == Path(weights)


@pytest.mark.parametrize(("error", "wakes"), [(PassingError, False), (PassingError, True), (ConfigError, False)])
def test_what_may_be_had_at_the_next_try_is_tried_so_where_streams_wait(
    error: type[ConfigError], wakes: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one of several models, behind a death of its worker. A model that wakes is told at once why it cannot."""
    memory = mmap.mmap(-1, HEADER_BYTES)
    SleepWord(memory, 0).state = SleepState(idle=wakes)
    context: Any = SimpleNamespace(
        files={"weights": WeightsRecord.create(1)},
        log=logging.getLogger("worker"),
        spec=SimpleNamespace(engine=0),
        segment=SimpleNamespace(map=memory),
        system=SimpleNamespace(models=[None, None], kv_map_offsets=[0]),
        incarnation=2,
    )
    monkeypatch.setattr(parked, "ParkedWorker", lambda _, failed: failed)

    def load(_: Any) -> Any:
        raise error("no memory is free")

    if error is PassingError and not wakes:
        with pytest.raises(PassingError):
            load_weights(context, load)
    else:
        assert load_weights(context, load) == Unloadable(0, "no memory is free")
