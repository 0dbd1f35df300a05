"""Checkpoints that other projects' libraries make here, tiny, each in an environment of its own: read, and served.

A library's script (published/of_NAME.py) writes checkpoints in its formats and what it takes their weights for; these
are compared with what the loader decodes, number by number, and then the model is asked something.
"""

from __future__ import annotations

import subprocess
import sys
import sysconfig
import tempfile
import venv
from collections import Counter
from pathlib import Path
from typing import Any

from .launched import ROOT

SCRIPTS = Path(__file__).resolve().parent / "published"
MAKING_S = 900.0
NEAR = 4e-3  # of the largest number: what they mean is told in 16 bits by some
LIBRARIES: dict[str, tuple[str, ...]] = {  # beside torch and transformers, which are this project's
    "bitsandbytes": ("bitsandbytes",),
    "compressed_tensors": ("compressed-tensors",),
    "torchao": ("torchao",),
    "modelopt": ("nvidia-modelopt",),
    "auto_round": ("auto-round",),
    "mlx": ("mlx[cpu]", "mlx-lm"),
}
SHAPE: dict[str, Any] = {
    **{"vocab_size": 384, "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "eos_token_id": 0},
    **{"num_attention_heads": 8, "num_key_value_heads": 4, "head_dim": 32, "max_position_embeddings": 512},
    **{"initializer_range": 0.1, "tie_word_embeddings": False, "bos_token_id": None},
}


def install(place: Path, packages: tuple[str, ...]) -> Path:
    """An environment that sees this one's packages, with some of its own; its Python."""
    python = place / "bin" / "python"
    done = place / ".installed"
    if not done.exists() or done.read_text().split() != [*packages]:
        venv.create(place, with_pip=True)
        (site,) = place.glob("lib/python3*/site-packages")
        (site / "shared.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")
        subprocess.run([str(python), "-m", "pip", "install", "-q", *packages], check=True, stdout=sys.stderr)
        done.write_text(" ".join(packages))
    return python


def weights(folder: Path, only: tuple[str, ...] = ()) -> Counter[str]:
    """Checkpoints by bitsandbytes, torchao and others (--client), decoded and served."""
    sys.path.insert(0, str(ROOT))
    found: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as temporary:
        source = _source(Path(temporary) / "source")
        for name, packages in LIBRARIES.items():
            if only and name not in only:
                continue
            out = Path(temporary) / name
            out.mkdir()
            python = install(folder / name, packages)
            command = [str(python), "-W", "ignore", str(SCRIPTS / f"of_{name}.py"), str(source), str(out)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=MAKING_S)
            for line in done.stderr.splitlines():
                if ": not made: " in line:
                    print(f"{name} {line}", flush=True)
            if done.returncode:
                found[f"{name}: its script fails: {done.stderr[-400:]}"] += 1
            for means in sorted(out.glob("*.safetensors")):
                wrong = _compared(out / means.stem, means)
                found["right" if wrong is None else f"{name} {means.stem}: {wrong}"] += 1
                print(f"{name} {means.stem}: {wrong or 'right'}", flush=True)
    return found


def _source(folder: Path) -> Path:
    """A checkpoint in floats, whose weights have a few that are much larger than the rest."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    from tests.support.models.checkpoints import write_tokenizer

    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(**SHAPE))
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "layers." in name and parameter.dim() == 2:
                parameter[::7, ::31] *= 4
    model.to(torch.bfloat16).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def _compared(folder: Path, means: Path) -> str | None:
    """What is wrong."""
    from safetensors.torch import load_file

    from actorserve import LLM, ConfigError, SamplingParams
    from actorserve.actors.model.config_json import read_architecture
    from actorserve.actors.model.info import resolve_model
    from actorserve.actors.model.values import read_json
    from actorserve.actors.options.config import make_config
    from actorserve.actors.worker.models.weights import open_checkpoint
    from tests.support.models.checkpoints import write_tokenizer

    write_tokenizer(folder)
    options = {"model": str(folder), "device": "cpu", "quantization": "none"}
    try:
        home = Path(resolve_model(make_config(options)).folder)
        shape = read_architecture(read_json(home / "config.json"), quantization="none")
        read = open_checkpoint(home, shape)
        known = load_file(means)
        for name, wanted in known.items():
            if name not in shape.specs():
                return f"{name} is no weight of the model"
            off = float((read(name, slice(None), None).float() - wanted).abs().max() / wanted.abs().max())
            if off > NEAR:
                return f"{name} is off by {off:.2g} of its largest"
        params = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)
        for quantization in ("none", "auto"):
            own = {**options, "quantization": quantization, "threads": 1, "kv_cache_memory_bytes": 8 << 20}
            model = own.pop("model")
            with LLM(model, in_process=True, **own) as llm:
                (answer,) = llm.generate([{"prompt_token_ids": [5, 6, 7]}], params, use_tqdm=False)
            if len(answer.outputs[0].token_ids) != 5:
                return f"no answer with --quantization {quantization}"
    except ConfigError as error:
        return f"refused: {error}"
    return None if len(known) >= 14 else f"only {len(known)} weights were compared"
