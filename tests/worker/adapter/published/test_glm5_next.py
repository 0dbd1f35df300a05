"""GLM-5 Next: layers with states, and layers whose indexer chooses tokens by groups and asks how many there are."""

from __future__ import annotations

from pathlib import Path

import transformers

from tests.support.models.census import generated, served, tight

from ..test_parts import write_whole

LONG = 40  # tokens of an answer, of which memory runs out


def test_answers_in_a_crowd_are_those_of_generate(tmp_path: Path) -> None:
    """In chunks, preempted, and once more."""
    model = write_whole("glm5_next", tmp_path)
    model.generation_config = transformers.GenerationConfig(pad_token_id=0, eos_token_id=None, bos_token_id=None)
    rounds, preempted, _, way = served(tmp_path, LONG, **tight(tmp_path))
    assert rounds == [generated(model, LONG)] * 2
    assert preempted and way == "single"
