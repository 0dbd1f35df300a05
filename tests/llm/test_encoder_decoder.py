"""`generate` with a model whose encoder reads the prompt; one that listens takes no text."""

from __future__ import annotations

from pathlib import Path

import pytest

from actorserve import LLM, PromptError, SamplingParams
from tests.support.models.encoder_decoders import expected, options, prompts, write_tiny
from tests.support.models.sounds.whispers import write_whisper

PARAMS = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


def test_answers_are_those_of_transformers(tmp_path: Path) -> None:
    write_tiny("bart", tmp_path)
    with LLM(str(tmp_path), in_process=True, **options()) as llm:
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts()], PARAMS, use_tqdm=False)
        with pytest.raises(PromptError, match="128 tokens"):
            llm.generate([{"prompt_token_ids": [5] * 200}], PARAMS, use_tqdm=False)
    assert [list(one.outputs[0].token_ids) for one in outputs] == expected(tmp_path, 8)


def test_a_text_for_one_that_listens_is_refused(tmp_path: Path) -> None:
    """And costs its own request alone."""
    write_whisper(tmp_path)
    with LLM(str(tmp_path), in_process=True, **options(max_model_len=None)) as llm:
        for _ in range(2):
            with pytest.raises(PromptError, match="hears"):
                llm.generate(["Hello"], PARAMS, use_tqdm=False)
