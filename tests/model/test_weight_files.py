"""Files of weights that are cut off, wrong or too large: one line that names the file, before anybody starts."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.model.damaged import CONFIG, find, refusal, write


def header(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Write the file anew with another header."""
    path = folder / "model.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    values = json.loads(data[8 : 8 + length])
    change(values)
    text = json.dumps(values).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


NORM = "model.norm.weight"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda h: h.pop(NORM), "broken or cut off"),
        (lambda h: h[NORM].update(dtype="I8"), f"{NORM} has 512 bytes, which is not its shape"),
        (lambda h: h[NORM].update(shape=[1]), f"{NORM} has .* bytes, which is not its shape"),
        (lambda h: h[NORM].update(shape="x"), f"does not say type, shape and place of {NORM}"),
        (lambda h: h[NORM].update(data_offsets=[-4, 0]), f"does not say type, shape and place of {NORM}"),
        (lambda h: h.update({NORM: 5}), f"does not say type, shape and place of {NORM}"),
        (lambda h: h.update({"extra": h.pop(NORM)}), f"lacks {NORM}; it has extra, for which"),
        (lambda h: h.update({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}), "does not lie where"),
    ],
)
def test_a_header_that_is_wrong(folder: Path, change: Callable[[dict[str, Any]], object], words: str) -> None:
    header(folder, change)
    assert re.search(words, refusal(folder))


def test_files_that_are_cut_off_or_no_weights(folder: Path) -> None:
    path = folder / "model.safetensors"
    data = path.read_bytes()
    for content, words in (
        (data[:-1], "it has 6,"),
        (data + b"\0", "in place of"),
        (data[:100], "it ends inside its header"),
        (b"", "it ends inside its header"),
        ((200_000).to_bytes(8, "little") + b"[" * 200_000, "nested too deeply"),
        ((2).to_bytes(8, "little") + b"[]", "no JSON object"),
        ((1 << 63).to_bytes(8, "little") + b"{}", "it ends inside its header"),
    ):
        path.write_bytes(content)
        said = refusal(folder)
        assert f"{path} is broken or cut off: " in said and words in said, said
    path.write_bytes(b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n")
    assert "is a pointer of Git LFS: `git lfs pull`" in refusal(folder)
    path.unlink()
    (folder / "weights.pth").write_bytes(data)
    assert "has neither model.safetensors nor" in refusal(folder) and "but weights.pth" in refusal(folder)
    assert find(folder, load_format="dummy")


def test_weights_that_no_memory_holds(folder: Path) -> None:
    write(folder, CONFIG, num_hidden_layers=4096, intermediate_size=1 << 20)
    assert re.search(
        r"its weights take [\d,]+ bytes of memory, and [\d,]+ are free", refusal(folder, load_format="dummy")
    )


def test_parts_without_an_index_and_an_index_without_its_files(folder: Path) -> None:
    """The one file counts, as with transformers; without one all parts of a file, by their names."""
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "model-1-of-2.safetensors"}}))
    assert find(folder)
    (folder / "model.safetensors.index.json").unlink()
    whole = folder / "model.safetensors"
    shutil.copy(whole, folder / "model-00001-of-00001.safetensors")
    shutil.move(whole, folder / "consolidated.safetensors")
    assert find(folder)
    shutil.copy(folder / "consolidated.safetensors", folder / "model-00001-of-00002.safetensors")
    (folder / "model-00001-of-00001.safetensors").unlink()
    said = refusal(folder)
    assert "has neither model.safetensors nor" in said and "in Mistral's own form, for which --load-format" in said


def test_what_makes_logits_is_missing(folder: Path) -> None:
    write(folder, CONFIG, tie_word_embeddings=False)
    assert """lacks lm_head.weight (if embeddings make logits, --hf-overrides '{"tie_word""" in refusal(folder)
