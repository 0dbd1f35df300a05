"""Tiny models with an encoder and a decoder, asked here and by transformers' generate(): who answers alike.

Weights are random and attention peaked. A model is served by all actors in one process: prompts of very different
lengths, eight sequences at once in KV memory for about three, so that some are preempted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from actorserve import LLM, ConfigError, EngineDead, SamplingParams
from actorserve.actors.llm.inside import InProcess
from actorserve.actors.scheduler.actor import SchedulerActor
from tests.support.models.census import Row, plan_by_no_clock
from tests.support.models.checkpoints import VOCABULARY, write_tokenizer

KINDS = "t5 bart mbart pegasus marian led t5gemma t5gemma2".split()
SPEECH = ("seamless_m4t", "seamless_m4t_v2", "encoder-decoder", "nemo_speechlm", "qwen3_asr")
PROMPTS = (3, 21, 40, 9, 33, 58, 17, 26)  # tokens
ANSWER = 20
BLOCK, LONGEST = 8, 128
END = 2
NEAR = 1e-3


def kinds() -> list[str]:
    """All names of models that transformers has as text to text."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES

    names = [name for name in MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES if name not in SPEECH]
    return [name for name in names if AutoConfig.for_model(name).is_encoder_decoder]


def write_tiny(name: str, folder: Path, seed: int = 1, ends: bool = False) -> None:
    """A checkpoint of this kind, with a tokenizer. `ends`: an answer may end before it must."""
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM

    from actorserve.actors.worker.adapter.twin import shrink
    from actorserve.actors.worker.adapter.verify import randomise

    config = shrink(AutoConfig.for_model(name), VOCABULARY)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForSeq2SeqLM.from_config(config).float().eval()
    randomise(model, seed=seed)
    marks = {"pad_token_id": 0, "eos_token_id": END if ends else None, "decoder_start_token_id": 1}
    model.generation_config = type(model.generation_config)(**marks)
    for key, value in marks.items():
        setattr(model.config, key, value)
    for key in ("forced_bos_token_id", "forced_eos_token_id"):
        setattr(model.config, key, None)
    model.save_pretrained(folder)
    write_tokenizer(folder)


def prompts() -> list[list[int]]:
    """Token ids."""
    import numpy as np

    rng = np.random.default_rng(0)
    return [rng.integers(3, VOCABULARY - 8, size).tolist() for size in PROMPTS]


def expected(folder: Path, answer: int = ANSWER) -> list[list[int]]:
    """What generate() answers, one prompt at a time."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    answers = []
    with torch.inference_mode():
        for ids in prompts():
            made = model.generate(
                torch.tensor([ids]), do_sample=False, num_beams=1, max_new_tokens=answer, min_length=0
            )
            answers.append(made[0, 1:].tolist())
    return answers


def options(**changes: Any) -> dict[str, Any]:
    """Of an LLM in one process."""
    return {
        "device": "cpu",
        "dtype": "float32",
        "max_num_seqs": len(PROMPTS),
        "max_num_batched_tokens": 16,
        "block_size": BLOCK,
        "max_model_len": LONGEST,
        "threads": 1,
        **changes,
    }


def tight(folder: Path) -> dict[str, Any]:
    """Options with KV memory for about three of the sequences."""
    from actorserve.actors.model.info import resolve_model
    from actorserve.actors.options.config import make_config
    from actorserve.actors.worker.encoder_decoder.load import describe_encoder_decoder

    config = make_config({"model": str(folder), **options()})
    _, kv, _ = describe_encoder_decoder(config, resolve_model(config))
    return {"kv_cache_memory_bytes": kv.block_bytes(BLOCK, 4) * (LONGEST // BLOCK * 5 // 4)}


def served(folder: Path, answer: int = ANSWER, **changes: Any) -> tuple[list[list[int]], int, str]:
    """(answers, how often one was preempted, how it was computed)."""
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    with LLM(str(folder), in_process=True, **options(**changes)) as llm:
        link = llm._engine._link
        assert isinstance(link, InProcess)
        (scheduler,) = [actor.scheduler for actor, _ in link._actors if isinstance(actor, SchedulerActor)]
        plan_by_no_clock(scheduler)
        outputs = llm.generate([{"prompt_token_ids": ids} for ids in prompts()], params, use_tqdm=False)
        preempted = scheduler.preemptions + scheduler.planner.memory.preemptions
        model: Any = next(actor.runner.model for actor, _ in link._actors if hasattr(actor, "runner"))
        assert [output.prompt_token_ids for output in outputs] == prompts()
    return [list(output.outputs[0].token_ids) for output in outputs], preempted, model.way.name.lower()


def gap(folder: Path, ids: list[int], answer: list[int], one: int, other: int) -> float:
    """How far apart the logits of two words are behind an answer, in deviations."""
    import torch
    from transformers import AutoModelForSeq2SeqLM

    model = AutoModelForSeq2SeqLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        begun = torch.tensor([[1, *answer]])
        logits = model(input_ids=torch.tensor([ids]), decoder_input_ids=begun).logits[0, -1].float()
    return float((logits[one] - logits[other]).abs() / logits.std())


def examine(name: str, folder: Path, answer: int = ANSWER) -> Row:
    """Make one kind, serve it, and compare."""
    begun = time.process_time()
    try:
        write_tiny(name, folder)
        wanted = expected(folder, answer)
    except Exception as error:
        return Row(name, "no model", _first(error), seconds=time.process_time() - begun)
    try:
        answers, preempted, way = served(folder, answer, **tight(folder))
    except (ConfigError, EngineDead, RuntimeError) as error:
        reason = str(error).split("cannot be served: ")[-1].split(" (/")[0].replace(f"{folder}/", "")
        return Row(name, "refused", reason, seconds=time.process_time() - begun)
    result, words = "equal", way
    for ids, right, got in zip(prompts(), wanted, answers, strict=True):
        at = next((at for at in range(answer) if right[at : at + 1] != got[at : at + 1]), None)
        if at is not None and gap(folder, ids, right[:at], right[at], got[at]) > NEAR:
            result, words = "differs", f"{way}: a prompt of {len(ids)} at token {at + 1}"
    shutil.rmtree(folder)
    return Row(name, result, words, preempted, 0, time.process_time() - begun)


def census(names: list[str], root: Path) -> Iterator[Row]:
    """One after the other."""
    yield from (examine(name, root / name) for name in names)


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
