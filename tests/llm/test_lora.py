"""LLM with adapters: loaded by name and path, one for each prompt."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from actorserve import LLM, LoRARequest, SamplingParams
from tests.support.models.adapters import KINDS, logprobs_of, write_adapter
from tests.support.models.checkpoints import checkpoint

GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)
PROMPT = {"prompt_token_ids": list(range(5, 25))}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return checkpoint("llama", tmp_path_factory.mktemp("lora"), initializer_range=0.1)


@pytest.fixture(scope="module")
def llm(base: Path) -> Iterator[LLM]:
    with LLM(str(base), in_process=True, enable_lora=True, max_num_seqs=4, max_model_len=128, threads=1) as made:
        yield made


def likeliest(base: Path, adapter: Path | None) -> list[int]:
    """Of PEFT."""
    ids: list[int] = []
    for _ in range(8):
        ids.append(int(logprobs_of(base, adapter, PROMPT["prompt_token_ids"] + ids)[-1].argmax()))
    return ids


def test_one_for_each_prompt(llm: LLM, base: Path, tmp_path: Path) -> None:
    paths = [write_adapter(base, tmp_path / kind, 3, **KINDS[kind]) for kind in ("rslora", "dora")]
    first, second = (LoRARequest(path.name, number, str(path)) for number, path in enumerate(paths, 1))
    for _ in range(2):
        outputs = llm.generate([PROMPT] * 3, GREEDY, use_tqdm=False, lora_request=[first, None, second])
        wanted = [likeliest(base, path) for path in (paths[0], None, paths[1])]
        assert [output.outputs[0].token_ids for output in outputs] == wanted
    assert len({tuple(ids) for ids in wanted}) == 3
    (again,) = llm.generate([PROMPT], GREEDY, use_tqdm=False, lora_request=LoRARequest("dora"))
    assert again.outputs[0].token_ids == wanted[2]
    other = LoRARequest("dora", 2, str(paths[0]))
    (changed,) = llm.generate([PROMPT], GREEDY, use_tqdm=False, lora_request=other)
    assert changed.outputs[0].token_ids == wanted[0]


def test_what_cannot_be(llm: LLM, base: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="there is no folder"):
        llm.generate([PROMPT], GREEDY, use_tqdm=False, lora_request=LoRARequest("none", 1, str(tmp_path / "none")))
    with pytest.raises(ValueError, match="2 prompts and 1 lora_request do not match"):
        llm.generate([PROMPT] * 2, GREEDY, use_tqdm=False, lora_request=[LoRARequest("one")])
    with pytest.raises(ValueError, match="lora_name: '' is no name"):
        LoRARequest("")
