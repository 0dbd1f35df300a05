"""What clients may read of the model, and where its files are read for it."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from actorserve.actors.frontend import model_card
from actorserve.actors.frontend.model_card import MOST_LICENSE
from actorserve.actors.model.info import DEMO_FOLDER, resolve_model
from actorserve.actors.model.weights.weight_files import StoredTensor
from actorserve.actors.options.config import Config
from actorserve.http.settings import ModelCard

from .others import MODEL


async def test_files_are_read_beside_the_event_loop_and_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    readers = []

    def noted(folder: Path) -> dict[str, StoredTensor]:
        readers.append(threading.current_thread())
        return {}

    monkeypatch.setattr(model_card, "read_weights", noted)
    model_card._read.cache_clear()
    config = Config()
    for _ in range(2):
        card = await model_card.card_of(config, resolve_model(config))
        assert card.hidden and card.modified
    assert len(readers) == 1 and readers[0] is not threading.main_thread()
    model_card._read.cache_clear()


async def test_of_a_folder_that_has_gone_there_are_no_sizes() -> None:
    assert await model_card.card_of(Config(), MODEL) == ModelCard(MODEL.architecture)


@pytest.mark.parametrize(
    ("files", "told"),
    [
        ({"LICENSE": b"All may.\n", "README.md": b"no"}, "All may."),
        ({"license.txt": b"\xff" + b"a" * MOST_LICENSE}, "\ufffd" + "a" * (MOST_LICENSE - 1)),
        ({"LICENSE.md": b"a\0b"}, ""),
        ({"COPYING": b"a\0b", "LICENSE": b"All may."}, "All may."),
        ({"LICENSES.json": b"{}"}, ""),
    ],
)
async def test_the_license_is_what_lies_with_the_model(tmp_path: Path, files: dict[str, bytes], told: str) -> None:
    for path in DEMO_FOLDER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    config = Config(model=str(tmp_path))
    assert (await model_card.card_of(config, resolve_model(config))).license == told


async def test_a_license_that_cannot_be_read_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in DEMO_FOLDER.iterdir():
        (tmp_path / path.name).symlink_to(path)
    for name in ("COPYING", "LICENSE"):
        (tmp_path / name).write_text("All may.")
    opened = Path.open

    def refused(path: Path, *args: Any, **how: Any) -> Any:
        if path.name == "COPYING":
            raise PermissionError("not for you")
        return opened(path, *args, **how)

    monkeypatch.setattr(Path, "open", refused)
    config = Config(model=str(tmp_path))
    card = await model_card.card_of(config, resolve_model(config))
    assert (card.license, card.hidden > 0) == ("All may.", True)
