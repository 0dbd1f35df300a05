"""Train the demo model that `actorserve launch` serves when no model is named.

    python tools/train_demo.py --out actors/model/demo --minutes 30

It composes its text itself (demo/text), trains on one CPU core for as long as told, writes a usable folder every few
minutes, goes on from its last checkpoint when started again, and ends with the evaluation of demo/check.py.
"""

from __future__ import annotations

import argparse
import itertools
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedTokenizerFast
from transformers.utils import logging

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from tools.demo.check import report
from tools.demo.model import make_model, save, train_tokenizer
from tools.demo.text.corpus import Corpus, Document

TOKENS_A_STEP = 2048
SHORT, LONG = 256, 1024
LONG_FROM = 0.88  # the part of the training after which rows are long
MATRIX_RATE, EMBEDDING_RATE = 4e-3, 3e-3
WARM_UP = 40
TOKENIZER_DOCUMENTS = 20_000
SAVE_EVERY = 200


@dataclass
class Progress:
    """How far the training is: it ends with its steps or its minutes, whichever come first."""

    steps: int
    seconds: float
    step: int = 0
    spent: float = 0.0
    _since: float = field(default_factory=time.monotonic)

    @property
    def elapsed(self) -> float:
        """Seconds of training, those before a restart included."""
        return self.spent + time.monotonic() - self._since

    @property
    def part(self) -> float:
        """From 0 to 1."""
        return min(1.0, max(self.step / self.steps, self.elapsed / self.seconds))

    @property
    def rate(self) -> float:
        """The factor of the learning rates: a short warm-up, then a straight line to zero."""
        return min(1.0, (self.step + 1) / WARM_UP) * (1.0 - self.part)


def encode(document: Document, tokenizer: PreTrainedTokenizerFast) -> tuple[list[int], list[float]]:
    """Token ids of a document, and the weight of each token's loss."""
    ids: list[int] = []
    weights: list[float] = []
    for text, weight in document:
        piece = tokenizer.encode(text, add_special_tokens=False)
        ids += piece
        weights += [weight] * len(piece)
    return ids, weights


class Rows:
    """Rows of tokens: each begins with a document and is filled with others, the last of which is cut off."""

    def __init__(self, documents: Iterator[Document], tokenizer: PreTrainedTokenizerFast) -> None:
        self._documents = documents
        self.tokenizer = tokenizer

    def batch(self, length: int) -> tuple[torch.Tensor, torch.Tensor]:
        """The ids and weights of one step, `length` tokens a row."""
        rows = [self._row(length) for _ in range(TOKENS_A_STEP // length)]
        return torch.tensor([ids for ids, _ in rows]), torch.tensor([weights for _, weights in rows])

    def _row(self, length: int) -> tuple[list[int], list[float]]:
        ids: list[int] = []
        weights: list[float] = []
        while len(ids) < length:
            more_ids, more_weights = encode(next(self._documents), self.tokenizer)
            ids += more_ids
            weights += more_weights
        return ids[:length], weights[:length]


class Trainer:
    """A model in training: Muon for the matrices, AdamW for the embedding and the norms."""

    def __init__(self, model: LlamaForCausalLM, bf16: bool) -> None:
        self.model = model
        self._bf16 = bf16
        named = list(model.named_parameters())
        matrices = [value for name, value in named if value.ndim == 2 and "embed" not in name]
        others = [value for name, value in named if value.ndim != 2 or "embed" in name]
        muon = torch.optim.Muon(matrices, lr=MATRIX_RATE, weight_decay=0.01, adjust_lr_fn="match_rms_adamw")
        adam = torch.optim.AdamW(others, lr=EMBEDDING_RATE, betas=(0.9, 0.98), weight_decay=0.0)
        self._optimizers: list[tuple[torch.optim.Optimizer, float]] = [(muon, MATRIX_RATE), (adam, EMBEDDING_RATE)]

    def step(self, ids: torch.Tensor, weights: torch.Tensor, rate: float) -> float:
        """One step of the optimizers; the weighted loss."""
        with torch.autocast("cpu", torch.bfloat16, enabled=self._bf16):
            logits = self.model(input_ids=ids, use_cache=False).logits
        losses = torch.nn.functional.cross_entropy(
            logits[:, :-1].float().flatten(0, 1), ids[:, 1:].flatten(), reduction="none"
        )
        goal = weights[:, 1:].flatten()
        loss = (losses * goal).sum() / goal.sum()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        for optimizer, full_rate in self._optimizers:
            for group in optimizer.param_groups:
                group["lr"] = full_rate * rate
            optimizer.step()
            optimizer.zero_grad(set_to_none=True)
        return loss.item()

    def state(self) -> dict[str, Any]:
        """All that a checkpoint needs."""
        optimizers = [optimizer.state_dict() for optimizer, _ in self._optimizers]
        return {"model": self.model.state_dict(), "optimizers": optimizers}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from a checkpoint."""
        self.model.load_state_dict(state["model"])
        for (optimizer, _), saved in zip(self._optimizers, state["optimizers"], strict=True):
            optimizer.load_state_dict(saved)


def train(trainer: Trainer, rows: Rows, progress: Progress, arguments: argparse.Namespace) -> None:
    """Train to the end of the progress, saving on the way."""
    running = 0.0
    while progress.part < 1.0:
        ids, weights = rows.batch(LONG if progress.part > LONG_FROM else SHORT)
        loss = trainer.step(ids, weights, progress.rate)
        running = loss if progress.step == 0 else 0.95 * running + 0.05 * loss
        progress.step += 1
        if progress.step % 50 == 0:
            print(f"step {progress.step} {progress.elapsed:.0f} s {progress.part:.1%} loss {running:.4f}", flush=True)
        if progress.step % SAVE_EVERY == 0 or progress.part >= 1.0:
            save(trainer.model, rows.tokenizer, arguments.out)
            state = trainer.state() | {"step": progress.step, "spent": progress.elapsed}
            torch.save(state, arguments.checkpoint)


def start(arguments: argparse.Namespace) -> tuple[Trainer, Rows, Progress]:
    """A new training, or the one that the checkpoint and the folder hold."""
    state = torch.load(arguments.checkpoint) if arguments.checkpoint.exists() else None
    tokenizer = AutoTokenizer.from_pretrained(arguments.out) if state else new_tokenizer(arguments.seed)
    trainer = Trainer(make_model(tokenizer), arguments.bf16)
    progress = Progress(arguments.steps, arguments.minutes * 60)
    if state:
        trainer.load(state)
        progress.step, progress.spent = state["step"], state["spent"]
    rows = Rows(Corpus(arguments.seed + progress.step).documents(), tokenizer)
    print(f"{trainer.model.num_parameters()} parameters, {len(tokenizer)} words, from step {progress.step}", flush=True)
    return trainer, rows, progress


def new_tokenizer(seed: int) -> PreTrainedTokenizerFast:
    """A tokenizer for the text of the corpus."""
    documents = itertools.islice(Corpus(seed).documents(), TOKENIZER_DOCUMENTS)
    return train_tokenizer("".join(text for text, _ in document) for document in documents)


def parse() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("actors/model/demo"), help="the folder to write")
    parser.add_argument("--checkpoint", type=Path, default=Path("build/demo.pt"), help="where to go on from")
    parser.add_argument("--steps", type=int, default=4000, help=f"the most steps, of {TOKENS_A_STEP} tokens each")
    parser.add_argument("--minutes", type=float, default=50, help="the most minutes")
    parser.add_argument("--threads", type=int, default=1, help="compute threads")
    parser.add_argument("--seed", type=int, default=1, help="of the text and of the first weights")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16: faster where the CPU can do so")
    return parser.parse_args()


def main() -> None:
    """Train, then say how good the model is."""
    arguments = parse()
    arguments.checkpoint.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(arguments.seed)
    torch.set_num_threads(arguments.threads)
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    trainer, rows, progress = start(arguments)
    train(trainer, rows, progress, arguments)
    report(arguments.out, temperature=0.0)


if __name__ == "__main__":
    main()
