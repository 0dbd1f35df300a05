"""Tiny models of all kinds that transformers knows, asked here and by generate(): who answers alike.

A model is made of its kind's default config with small sizes (what a default leaves open is filled in below) and
weights with which attention is peaked. It is served by all actors in one process: prompts in chunks of 16 tokens, eight
sequences at once in KV memory for about three, so that some are preempted; the same again, from the prefix cache.
"""

from __future__ import annotations

import shutil
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

from actorserve import LLM, ConfigError, EngineDead, SamplingParams
from actorserve.actors.llm.inside import InProcess
from actorserve.actors.scheduler.actor import SchedulerActor
from actorserve.actors.scheduler.scheduler import Scheduler
from tests.support.models.checkpoints import VOCABULARY, write_tokenizer

QWEN4: dict[str, Any] = {
    "ple_layer_ids": [2],
    "eos_token_id": 2,
    **{"indexer_n_heads": 4, "indexer_kv_heads": 1, "indexer_head_dim": 128},
    **{"indexer_budget": 2048, "indexer_compress_ratio": 32},
    "rope_parameters": {
        **{"rope_type": "default", "rope_theta": 1e7, "partial_rotary_factor": 0.25},
        "mrope_section": [11, 11, 10],
    },
}
FIELDS: dict[str, dict[str, Any]] = {  # where defaults make no model, or not one as it is published
    "bamba": {"attn_layer_indices": [9, 18, 27]},
    "blenderbot": {"is_encoder_decoder": False},
    "deepseek_v2": {"num_experts_per_tok": 6},
    "cohere_compass_text": {"rope_parameters": {"full_attention": {"rope_type": "default", "rope_theta": 10000.0}}},
    "dbrx": {"attn_config": {"kv_n_heads": 8, "rope_theta": 500000.0, "clip_qkv": 8.0}},
    "dots1": {"n_routed_experts": 128, "num_experts_per_tok": 6, "n_group": 1, "topk_group": 1, "n_shared_experts": 2},
    "granitemoehybrid": {"layer_types": ["mamba", "mamba", "attention", "mamba"] * 5, "num_hidden_layers": 20},
    "hunyuan_v1_dense": {"head_dim": 128},
    "hunyuan_v1_moe": {"head_dim": 128},
    "lfm2": {"full_attn_idxs": [2, 5, 8, 10, 12, 14], "num_hidden_layers": 16},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"] * 6, "num_hidden_layers": 24},
    "ministral": {"head_dim": 128},
    "nemotron": {"head_dim": 128, "num_key_value_heads": 8},
    "qwen4_exp": {"text_config": QWEN4},
    "qwen4_exp_text": QWEN4,
    "step3p7_text": {
        **{"sliding_window": 512, "layer_types": (["full_attention"] + ["sliding_attention"] * 3) * 12},
        **{"num_hidden_layers": 45, "num_nextn_predict_layers": 3, "num_sliding_attention_heads": 96},
        **{"swiglu_limits": [0.0] * 43 + [0.5] * 2 + [0.0] * 3, "swiglu_limits_shared": [0.0] * 44 + [0.5] + [0.0] * 3},
    },
    "xmod": {"default_language": "en_XX"},
}
POPULAR = (
    "gemma gemma2 gemma3_text gemma4_text gpt2 gpt_neox gpt_oss mixtral qwen3_moe "
    "deepseek_v3 deepseek_v4 axk2 hy_v4 qwen4_exp dots3_note olmo2 cohere2 granite glm4 falcon bloom "
    "minimax recurrent_gemma rwkv mamba2 zamba2 qwen3_next lfm2 falcon_h1"
).split()
PROMPTS = (3, 21, 40, 9, 33, 58, 17, 26)  # tokens
SAME = 24  # with which the longer ones begin
ANSWER = 20
BLOCK, LONGEST = 8, 128
NEAR = 1e-3  # of the deviation of logits: two words that lie closer are equally likely


class Row(NamedTuple):
    """What came of one kind."""

    name: str
    result: str  # "equal", "refused", "differs", "no model"
    way: str  # how it is computed, or why not
    preempted: int = 0
    cached: int = 0  # prompt tokens found by their prefix
    seconds: float = 0.0  # of CPU, all of it


def kinds() -> list[str]:
    """All names of models that go on with texts."""
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    return list(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def write_tiny(name: str, folder: Path, published: dict[str, Any] | None = None, **changes: Any) -> None:
    """A checkpoint of this kind, with a tokenizer; `published`: of a config.json, which are made small; `changes`:
    fields of the tiny config."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    from actorserve.actors.worker.adapter.twin import shrink
    from actorserve.actors.worker.adapter.verify import randomise

    config = shrink(AutoConfig.for_model(name, **(published or FIELDS.get(name, {}))), VOCABULARY)
    if hasattr(config, "is_decoder"):
        config.is_decoder = True
    for field, value in changes.items():
        setattr(config, field, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        model = AutoModelForCausalLM.from_config(config).float().eval()
    randomise(model, seed=1)
    model.generation_config = type(model.generation_config)(pad_token_id=0, eos_token_id=None, bos_token_id=None)
    model.save_pretrained(folder)
    write_tokenizer(folder)


def prompts() -> list[list[int]]:
    """Token ids; the longer ones begin alike."""
    import numpy as np

    rng = np.random.default_rng(0)
    common = rng.integers(3, VOCABULARY - 8, SAME).tolist()
    return [
        (common + rng.integers(3, VOCABULARY - 8, size).tolist())[-size:]
        if size <= SAME
        else common + rng.integers(3, VOCABULARY - 8, size - SAME).tolist()
        for size in PROMPTS
    ]


def served(folder: Path, answer: int = ANSWER, **options: Any) -> tuple[list[list[list[int]]], int, int, str]:
    """(answers of two rounds, how often one was preempted, cached prompt tokens, how it was computed)."""
    given: dict[str, Any] = {
        "device": "cpu",
        "dtype": "float32",
        "max_num_seqs": len(PROMPTS),
        "max_num_batched_tokens": 16,
        "block_size": BLOCK,
        "max_model_len": LONGEST,
        "model_impl": "transformers",
        "threads": 1,
        **options,
    }
    params = SamplingParams(temperature=0, max_tokens=answer, ignore_eos=True)
    with LLM(str(folder), in_process=True, **given) as llm:
        asked = [{"prompt_token_ids": ids} for ids in prompts()]
        link = llm._engine._link
        assert isinstance(link, InProcess)
        (scheduler,) = [actor.scheduler for actor, _ in link._actors if isinstance(actor, SchedulerActor)]
        plan_by_no_clock(scheduler)
        rounds = [llm.generate(asked, params, use_tqdm=False) for _ in range(2)]
        preempted = scheduler.preemptions + scheduler.planner.memory.preemptions
        model = next(actor.runner.model for actor, _ in link._actors if hasattr(actor, "runner"))
        way = model.tier.value if hasattr(model, "tier") else "native"
    cached = sum(output.num_cached_tokens for output in rounds[1])
    return [[list(one.outputs[0].token_ids) for one in outputs] for outputs in rounds], preempted, cached, way


def plan_by_no_clock(scheduler: Scheduler) -> None:
    """No step's time is measured: what is planned together, and so preempted and found again, would hang on it."""
    scheduler.chunk_size.observe = lambda *_: None  # type: ignore[method-assign]


def tight(folder: Path) -> dict[str, Any]:
    """Options with KV memory for about three of the sequences, if tokens take any."""
    from actorserve.actors.model.info import resolve_model
    from actorserve.actors.model.memory.kv_memory import ITEM_BYTES, SHARE_OF_SNAPSHOTS
    from actorserve.actors.options.config import make_config
    from actorserve.actors.worker.adapter.facts import facts

    options = {"model": str(folder), "device": "cpu", "model_impl": "transformers", "max_model_len": LONGEST}
    config = make_config({**options, "block_size": BLOCK, "dtype": "float32", "max_num_seqs": len(PROMPTS)})
    _, kv, dtype, *_ = facts(config, resolve_model(config))
    tokens = kv.block_bytes(BLOCK, dtype.itemsize) * (LONGEST // BLOCK * 5 // 4)
    if not kv.states:
        return {"kv_cache_memory_bytes": tokens}
    states = kv.row_bytes({None: dtype.itemsize} | ITEM_BYTES) * len(PROMPTS)
    return {"kv_cache_memory_bytes": int(states + tokens / (1 - SHARE_OF_SNAPSHOTS)) + BLOCK} if tokens else {}


def expected(folder: Path, answer: int = ANSWER) -> list[list[int]]:
    """What generate() answers, one prompt at a time."""
    import torch
    from transformers import AutoModelForCausalLM

    return generated(AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval(), answer)


def generated(model: Any, answer: int = ANSWER) -> list[list[int]]:
    """The same of a model that is there."""
    import torch

    answers = []
    with torch.inference_mode():
        for ids in prompts():
            given = torch.tensor([ids])
            whole = model.generate(given, attention_mask=torch.ones_like(given), do_sample=False, max_new_tokens=answer)
            answers.append(whole[0, len(ids) :].tolist())
    return answers


def gap(folder: Path, ids: list[int], one: int, other: int) -> float:
    """How far apart the logits of two words are behind a text, in deviations."""
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.inference_mode():
        logits = model(torch.tensor([ids])).logits[0, -1].float()
    return float((logits[one] - logits[other]).abs() / logits.std())


def examine(name: str, folder: Path, answer: int = ANSWER, published: dict[str, Any] | None = None) -> Row:
    """Make one kind, serve it, and compare; `published` as for `write_tiny`."""
    begun = time.process_time()
    try:
        write_tiny(name, folder, published)
        wanted = expected(folder, answer)
    except Exception as error:
        return Row(name, "no model", _first(error), seconds=time.process_time() - begun)
    try:
        answers, preempted, cached, way = served(folder, answer, **tight(folder))
    except (ConfigError, EngineDead, RuntimeError) as error:
        reason = str(error).split("cannot be served: ")[-1].split(" (/")[0]
        return Row(name, "refused", reason, seconds=time.process_time() - begun)
    result, words = "equal", way
    for number, found in enumerate(answers):
        for ids, right, got in zip(prompts(), wanted, found, strict=True):
            at = next((at for at in range(answer) if right[at : at + 1] != got[at : at + 1]), None)
            if at is not None and gap(folder, ids + right[:at], right[at], got[at]) > NEAR:
                result, words = "differs", f"{way}: a prompt of {len(ids)} in round {number + 1} at token {at + 1}"
    shutil.rmtree(folder)
    return Row(name, result, words, preempted, cached, time.process_time() - begun)


def census(names: list[str], root: Path, jobs: int = 1) -> Iterator[Row]:
    """One after the other, in so many processes of their own."""
    if jobs == 1:
        yield from (examine(name, root / name) for name in names)
        return
    with ProcessPoolExecutor(jobs, get_context("spawn"), be_quiet) as pool:
        yield from pool.map(examine, names, [root / name for name in names])


def be_quiet() -> None:
    """One thread, and no words of transformers."""
    import torch
    import transformers

    warnings.filterwarnings("ignore")
    transformers.utils.logging.set_verbosity_error()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)


def _first(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return f"{type(error).__name__}: {lines[0] if lines else ''}"[:160]
