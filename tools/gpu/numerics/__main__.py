"""Is it right: greedy tokens and logits of random models against transformers', graphs on and off; and models that are
computed step by step (eager.py).
"""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForCausalLM

from ..report import TINY, at_most, say, surviving
from ..shapes import GREEDY, capture_graphs, compile_kernels
from .eager import compare

from actorserve.actors.protocol.step import NewRow, Step  # isort: skip
from actorserve.actors.model.info import read_json  # isort: skip
from actorserve.actors.model.config_json import read_architecture  # isort: skip
from actorserve.actors.worker.gpu.buffers import Sizes  # isort: skip
from actorserve.actors.worker.gpu.graphs import mixed_sizes  # isort: skip
from actorserve.actors.worker.gpu.memory import make_pools  # isort: skip
from actorserve.actors.worker.gpu.layers.varied_layers import make_model  # isort: skip
from actorserve.actors.worker.start.libraries import settle_libraries  # isort: skip
from actorserve.actors.worker.gpu.runner import GpuRunner  # isort: skip
from actorserve.actors.worker.models.weights import open_checkpoint  # isort: skip
from actorserve.actors.protocol.request import Sampling  # isort: skip
from actorserve.shm.table.logprobs import Logprobs  # isort: skip
from actorserve.shm.table.table import make_ref  # isort: skip
from tests.support.models.checkpoints import VOCABULARY, write_model  # isort: skip

LENGTH, BLOCK = 256, 16
PROMPTS, TOKENS = (4, 3) if TINY else (8, 48)
HEADS = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 64}
LATENTS = {  # DeepSeek's own
    **{"num_attention_heads": 16, "num_key_value_heads": 16, "q_lora_rank": 128, "kv_lora_rank": 512},
    **{"qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128},
}
# All experts are chosen: which ones are, of 16 bits, hangs on the last bit.
ALL_EXPERTS = {"n_routed_experts": 4, "num_experts_per_tok": 4, "n_group": 2, "topk_group": 2}
# Answers to the longest prompts do not see all tokens. Logits behind a prompt do, since of 16 bits they would hang on
# the last bit of scores.
CHOSEN = {"index_n_heads": 64, "index_head_dim": 128, "index_topk": 96}
CHUNKS = {**HEADS, "num_local_experts": 2, "num_experts_per_tok": 2}
KINDS: dict[str, dict[str, int]] = {"llama3": HEADS, "qwen3": HEADS, "mistral": HEADS}
KINDS |= {"deepseek_v3": LATENTS | ALL_EXPERTS, "deepseek_v32": LATENTS | ALL_EXPERTS | CHOSEN, "llama4": CHUNKS}
TRIED = ("qwen3", "deepseek_v3", "llama4") if TINY else (*KINDS,)  # in the interpreter each takes most of a minute
HALVES = {"llama3": (torch.bfloat16, torch.float16)}  # of each of the others bfloat16 alone: kernels are compiled anew
THREADS = 3  # of each kind's process, that compile
WIDE = {"hidden_size": 256, "intermediate_size": 512}
NEAR_TIE = 1e-3  # two best logits that lie closer may change places: other sums, other last bits
TOLERANCE = 1.5  # of bf16 logits: how far they may be from float32 ones, as a multiple of how far transformers' own are

BESIDE = "step by step"


def device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def prompts() -> list[list[int]]:
    random = np.random.default_rng(3)
    return [random.integers(3, VOCABULARY, 5 + 13 * number).tolist() for number in range(PROMPTS)]


def make_runner(
    folder: Path, dtype: torch.dtype, graphs: bool, deterministic: bool = False, told: Logprobs | None = None
) -> GpuRunner:
    shape = read_architecture(read_json(folder / "config.json"))
    read = open_checkpoint(folder, shape)
    get = lambda name: read(name, slice(None), None)  # noqa: E731
    model = make_model(shape, get, dtype, LENGTH, device(), deterministic=deterministic)
    log = np.zeros((PROMPTS, LENGTH), np.int32)
    sizes = Sizes(PROMPTS, sum(len(prompt) for prompt in prompts()), LENGTH, BLOCK)
    mixed = mixed_sizes(PROMPTS, sizes.tokens) if graphs else []
    runner = GpuRunner(model, log, sizes, [1, 2, 4, PROMPTS], mixed=mixed, logprobs=told)
    blocks = PROMPTS * LENGTH // BLOCK
    runner.pools = make_pools(shape, blocks, BLOCK, dtype, device())
    compile_kernels(runner, f"{folder.name}, {dtype}", THREADS)
    if graphs and torch.cuda.is_available():
        gc.collect()  # graphs of another runner, which are not to go while these are used
        capture_graphs(runner, f"{folder.name}, {dtype}")
    return runner


def generate(runner: GpuRunner, rows: Sequence[int] = range(PROMPTS), sampling: Sampling = GREEDY) -> list[list[int]]:
    """Some prompts at once: one step of them, then steps of decoding, each started before the last is done."""
    table = np.random.default_rng(5).permutation(PROMPTS * LENGTH // BLOCK).astype(np.int32).reshape(PROMPTS, -1)
    new, counts = [], []
    for row in rows:
        prompt = prompts()[row]
        counts.append(len(prompt))
        runner.log[row, : len(prompt)] = prompt
        new.append(NewRow.make(row, make_ref(1, row), len(prompt), len(prompt), 0, table[row], sampling))
    pending = [runner.launch(Step.make(1, 1, new, rows, counts))]
    tokens = []
    for number in range(TOKENS - 1):
        pending.append(runner.launch(Step.make(1, 2 + number, [], rows, [1] * len(rows))))
        tokens.append(runner.finish(pending[-2]).tolist())
    tokens.append(runner.finish(pending[-1]).tolist())
    return [list(row) for row in zip(*tokens, strict=True)]


def other_bits(folder: Path, dtype: torch.dtype, deterministic: bool) -> int:
    """How many prompts are answered with other logprobs together than alone: all of them, down to the last bit."""
    asked = Sampling(0, temperature=0.0, logprobs=5)

    def told(groups: list[range]) -> list[Any]:
        area = Logprobs(Logprobs.create(PROMPTS, LENGTH), PROMPTS, LENGTH)
        runner = make_runner(folder, dtype, True, deterministic, area)
        for rows in groups:
            generate(runner, rows, asked)
        lengths = [len(prompt) for prompt in prompts()]
        places = [range(length, length + TOKENS) for length in lengths]
        return [[area.read(row, position, 5) for position in own] for row, own in enumerate(places)]

    together, alone = told([range(PROMPTS)]), told([range(row, row + 1) for row in range(PROMPTS)])
    return sum(mine != other for mine, other in zip(together, alone, strict=True))


def wanted(folder: Path) -> tuple[list[list[int]], list[list[float]]]:
    """What transformers generates in float32, one prompt after the other; how far the two best logits were apart."""
    options: dict[str, Any] = {"max_new_tokens": TOKENS, "min_new_tokens": TOKENS, "do_sample": False}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, attn_implementation="eager")
    model = model.to(device()).eval()
    found, margins = [], []
    for prompt in prompts():
        ids = torch.tensor([prompt], device=device())
        out = model.generate(ids, eos_token_id=None, output_logits=True, return_dict_in_generate=True, **options)
        found.append(out.sequences[0, len(prompt) :].tolist())
        best = [logits[0].float().topk(2).values for logits in out.logits]
        margins.append([float(two[0] - two[1]) for two in best])
    return found, margins


def wrong(drawn: list[list[int]], reference: list[list[int]], margins: list[list[float]]) -> int:
    """How many sequences leave the reference where its two best logits were apart."""
    count = 0
    for mine, theirs, apart in zip(drawn, reference, margins, strict=True):
        first = next((place for place, (a, b) in enumerate(zip(mine, theirs, strict=True)) if a != b), None)
        count += first is not None and apart[first] >= NEAR_TIE
    return count


def logits_apart(folder: Path) -> tuple[float, float]:
    """The largest difference of bf16 logits after a prompt from transformers' float32 ones, in standard deviations of
    these: ours, and that of transformers' own in bf16.
    """
    exact = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).to(device()).eval()
    rough = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16).to(device()).eval()
    runner = make_runner(folder, torch.bfloat16, False)
    prompt = prompts()[-1]
    runner.log[0, : len(prompt)] = prompt
    new = NewRow.make(0, make_ref(1, 0), len(prompt), len(prompt), 0, range(LENGTH // BLOCK), GREEDY)
    runner.run(Step.make(1, 1, [new], [0], [len(prompt)]))
    mine = runner.model.logits(runner.sampler.normed[:1]).float()[0]
    ids = torch.tensor([prompt], device=device())
    theirs, own = (model(ids).logits[0, -1].float() for model in (exact, rough))
    return float((mine - theirs).abs().max() / theirs.std()), float((own - theirs).abs().max() / theirs.std())


def exact(kind: str, folder: Path) -> None:
    """Greedy tokens in float32."""
    reference, margins = wanted(folder)
    for graphs in (True, False):
        with surviving(f"{kind}, float32, {'with' if graphs else 'without'} graphs") as name:
            drawn = generate(make_runner(folder, torch.float32, graphs))
            say(f"{name}: tokens as transformers'", float((np.array(drawn) == np.array(reference)).mean()))
            at_most(f"{name}: sequences that differ where it was no near tie", wrong(drawn, reference, margins), "", 0)


def rough(kind: str, folder: Path) -> None:
    """Logits of 16 bits, and whether they are the same in every batch."""
    with surviving(f"{kind}, bfloat16: logits apart"):
        ours, theirs = logits_apart(folder)
        say(f"{kind}, bfloat16: logits apart, in standard deviations", ours)
        at_most(f"{kind}, bfloat16: that, beside transformers' own", ours / theirs, "times", TOLERANCE)
    for dtype in HALVES.get(kind, (torch.bfloat16,)):
        with surviving(f"{kind}, {dtype}: prompts of {PROMPTS} with other bits together than alone") as name:
            at_most(f"{name}, with --deterministic", other_bits(folder, dtype, True), "", 0)
            say(f"{name}, without", other_bits(folder, dtype, False))


def check(kind: str) -> None:
    settle_libraries()  # as a worker does
    with tempfile.TemporaryDirectory() as root, torch.inference_mode():
        folder = Path(root) / kind
        if kind == BESIDE:
            compare(folder, device())
            return
        write_model(kind, folder, **({} if TINY else WIDE | KINDS[kind]))
        with surviving(f"{kind}, float32"):
            exact(kind, folder)
        if not TINY:  # the interpreter would take minutes
            rough(kind, folder)


def main() -> int:
    """Each kind in a process of its own: nothing is timed, and compiling is most of it."""
    command = [sys.executable, "-m", "tools.gpu.numerics"]
    started = [subprocess.Popen([*command, kind]) for kind in (*TRIED, BESIDE)]
    return max(abs(process.wait()) for process in started)


if __name__ == "__main__":
    if len(sys.argv) == 1:
        sys.exit(main())
    check(sys.argv[1])
