"""Which tokens end an answer: what generation_config.json says, the tokenizer and the options."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.model.damaged import GENERATION, find, refusal, write

ABOUT = "tokenizer_config.json"
END, START, TURN = "<|endoftext|>", "<|im_start|>", "<|im_end|>"  # of the packaged model: 0, 1, 2


@pytest.mark.parametrize(
    ("own", "eos", "found"),
    [
        ([0], TURN, [0, 2]),  # a fine-tune of which only the tokenizer says how it ends
        ([2, 0], TURN, [2, 0]),
        (0, {"content": TURN, "special": True}, [0, 2]),
        (None, TURN, [2]),
        ([0], None, [0]),
        ([0], "<|nowhere|>", [0]),
    ],
)
def test_the_tokenizers_end_ends_an_answer_as_well(folder: Path, own: Any, eos: Any, found: list[int]) -> None:
    write(folder, GENERATION, eos_token_id=own)
    write(folder, ABOUT, eos_token=eos)
    assert find(folder).end_tokens == found


def test_it_may_be_named_by_the_map_of_special_tokens(folder: Path) -> None:
    write(folder, GENERATION, eos_token_id=0)
    write(folder, ABOUT, eos_token=...)
    (folder / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": TURN}}))
    assert find(folder).end_tokens == [0, 2]


def test_options_have_the_last_word(folder: Path) -> None:
    write(folder, GENERATION, eos_token_id=0)
    assert find(folder, override_generation_config={"eos_token_id": 1}).end_tokens == [1]
    assert find(folder, override_generation_config={"top_k": 5}).end_tokens == [0, 2]
    assert find(folder, generation_config="none").end_tokens == [0, 2]
    assert find(folder, skip_tokenizer_init=True).end_tokens == [0]


def test_a_token_that_the_model_has_no_row_for_ends_nothing(folder: Path) -> None:
    write(folder, GENERATION, eos_token_id=0)
    write(folder, ABOUT, eos_token="<|late|>")
    content = json.loads((folder / "tokenizer.json").read_text())
    content["added_tokens"].append({**content["added_tokens"][0], "id": 1 << 20, "content": "<|late|>"})
    (folder / "tokenizer.json").write_text(json.dumps(content))
    assert find(folder).end_tokens == [0]


def test_a_broken_tokenizer_is_told(folder: Path) -> None:
    (folder / "tokenizer.json").write_text('{"added_tokens": [{"id": "x", "content": 5}]}')
    assert "tokenizer.json cannot be read: Expected `int`, got `str`" in refusal(folder)


def test_penalties_that_the_file_has_for_nobody_else_are_the_options_alone(folder: Path) -> None:
    write(folder, GENERATION, presence_penalty=3.0, frequency_penalty="?", repetition_penalty=1.5)
    found = find(folder).sampling_defaults
    assert found["repetition_penalty"] == 1.5 and not {"presence_penalty", "frequency_penalty"} & found.keys()
    assert find(folder, override_generation_config={"presence_penalty": 1}).sampling_defaults["presence_penalty"] == 1


def test_a_temperature_of_the_options_is_drawn_by(folder: Path) -> None:
    write(folder, GENERATION, do_sample=False, top_k=None, top_p=None)
    assert find(folder).sampling_defaults["temperature"] == 0
    given: dict[str, Any] = {"temperature": 0.7, "presence_penalty": 1.5, "frequency_penalty": -0.5}
    assert find(folder, override_generation_config=given).sampling_defaults == given
    assert find(folder, override_generation_config=given | {"do_sample": False}).sampling_defaults["temperature"] == 0
    said = refusal(folder, override_generation_config={"presence_penalty": 3})
    assert "--override-generation-config says presence_penalty = 3; a number from -2 to 2" in said
