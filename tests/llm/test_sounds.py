"""Sounds that a script gives to an LLM object."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from actorserve import LLM, SamplingParams
from tests.support.models.sounds.listeners import listener
from tests.support.models.sounds.whispers import RATE, sound, wav

PARAMS = SamplingParams(max_tokens=2, ignore_eos=True)
MARK = "<|AUDIO|>"


@pytest.fixture(scope="module")
def llm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LLM]:
    folder = listener("qwen2_audio", tmp_path_factory.mktemp("heard"))
    with LLM(str(folder), worker="scripted", max_num_seqs=4, limit_mm_per_prompt={"audio": 2}) as made:
        yield made


def heard(llm: LLM, given: Any, count: int = 1) -> int:
    """How many tokens of the prompt stand for sounds."""
    prompt = {"prompt": MARK * count, "multi_modal_data": {"audio": given}}
    [output] = llm.generate(prompt, PARAMS, use_tqdm=False)
    token: int = llm.get_tokenizer().get_vocab()[MARK]
    return output.prompt_token_ids.count(token)


def test_arrays_are_what_files_of_them_are(llm: LLM) -> None:
    samples = sound(1.1, 3)
    data = base64.b64encode(wav(samples)).decode()
    turn = {"role": "user", "content": [{"type": "input_audio", "input_audio": {"data": data, "format": "wav"}}]}
    [output] = llm.chat([turn], PARAMS, use_tqdm=False)
    wanted = output.prompt_token_ids.count(llm.get_tokenizer().get_vocab()[MARK])
    floats = samples.astype(np.float64) / 32_768
    assert wanted > 10 and heard(llm, (samples, RATE)) == heard(llm, [(floats, RATE)]) == wanted
    assert heard(llm, (np.repeat(floats, 3), 3 * RATE)) == wanted
    assert heard(llm, [(samples, RATE), (samples, RATE)], 2) == 2 * wanted
    assert heard(llm, ((samples, RATE), (samples, RATE)), 2) == 2 * wanted
    assert heard(llm, (tuple(floats), np.int64(RATE))) == wanted


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (np.zeros(10), "how many there are of a second"),
        ((np.zeros((10, 2)), RATE), "of one channel"),
        ((np.array(["a"]), RATE), "an array of numbers"),
        ([(np.ones(9), RATE)] * 3, "at most 2 are taken"),
        ((np.ones(9), -1), "at least 1 and fewer than 2\\*\\*30 samples, not -1"),
        ((np.ones(9), 0.5), "not 0.5"),
        ((np.ones(9), 1 << 30), "not 1073741824"),
        ((np.ones(9), None), "not None"),
        ((np.ones(9), float("nan")), "not nan"),
        ((np.broadcast_to(np.int8(1), 1 << 30), RATE), "at most 1073741814 samples"),
    ],
)
def test_what_is_no_sound(llm: LLM, given: Any, why: str) -> None:
    with pytest.raises(ValueError, match=rf"prompt 0: multi_modal_data.*{why}|{why}"):
        llm.generate({"prompt": MARK, "multi_modal_data": {"audio": given}}, PARAMS)
