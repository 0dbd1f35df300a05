"""The model's folder and what its JSON files say, read once by the supervisor and handed to every actor.

Leaf module: plain JSON only, no torch and no transformers, so that the supervisor starts at once.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec

from .config import Config, ConfigError

DEMO_FOLDER = Path(__file__).resolve().parent / "demo"
SAMPLING_DEFAULTS = ("temperature", "top_k", "top_p", "min_p", "repetition_penalty", "max_new_tokens")


class ModelInfo(msgspec.Struct, frozen=True, kw_only=True):
    """What every actor needs to know of the model without reading its weights."""

    folder: str
    tokenizer_folder: str
    architecture: str  # as in config.json, e.g. "LlamaForCausalLM"
    vocab_size: int
    max_model_len: int  # tokens, prompt and answer together
    end_tokens: list[int]
    sampling_defaults: dict[str, float]  # of generation_config.json, by the request fields' names


def resolve_model(config: Config) -> ModelInfo:
    """Find the model's folder (downloading a hub name) and read its JSON files. ConfigError says what is wrong."""
    folder = find_folder(config.model, config.revision) if config.model else DEMO_FOLDER
    values = read_json(folder / "config.json")
    text = values.get("text_config") or values
    architectures = values.get("architectures") or []
    if not architectures:
        raise ConfigError(f"{folder}/config.json names no architecture")
    if not isinstance(text.get("vocab_size"), int):
        raise ConfigError(f"{folder}/config.json does not say how large the vocabulary is (vocab_size)")
    generation = read_json(folder / "generation_config.json", missing_ok=True)
    defaults = {k: generation[k] for k in SAMPLING_DEFAULTS if generation.get(k) is not None}
    if generation.get("do_sample") is False:
        defaults["temperature"] = 0.0
    tokenizer = find_folder(config.tokenizer, None) if config.tokenizer else folder
    return ModelInfo(
        folder=str(folder),
        tokenizer_folder=str(tokenizer),
        architecture=architectures[0],
        vocab_size=text["vocab_size"],
        max_model_len=_model_length(config, text),
        end_tokens=_end_tokens(generation, text),
        sampling_defaults=defaults if config.generation_config == "auto" else {},
    )


def find_folder(name: str, revision: str | None) -> Path:
    """A folder as it is, else a hub name, downloaded into the hub's cache (or found there when offline)."""
    path = Path(name).expanduser()
    if path.is_dir():
        return path.resolve()
    if path.is_absolute() or name.startswith(".") or name.count("/") > 1:
        raise ConfigError(f"model: there is no folder {name}")
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    patterns = ["*.json", "*.safetensors", "*.jinja", "tokenizer.model"]
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except (HFValidationError, HfHubHTTPError, LocalEntryNotFoundError, OSError) as error:
        raise ConfigError(f"model: {name} is neither a folder nor a model of the hub ({error})") from None


def read_json(path: Path, missing_ok: bool = False) -> dict[str, Any]:
    """A JSON object from a file. ConfigError names the file that is missing or broken."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if missing_ok:
            return {}
        raise ConfigError(f"{path} is missing") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{path} holds no JSON object")
    return values


def _end_tokens(generation: dict[str, Any], text: dict[str, Any]) -> list[int]:
    """generation_config.json's end tokens, else config.json's; one id, a list, or none."""
    value = generation.get("eos_token_id", text.get("eos_token_id"))
    return [] if value is None else list(value) if isinstance(value, list) else [int(value)]


def _model_length(config: Config, text: dict[str, Any]) -> int:
    """The length that the model was made for, or --max-model-len where that is not longer."""
    own, wanted = text.get("max_position_embeddings"), config.max_model_len
    if own is None:
        if wanted is None:
            raise ConfigError("--max-model-len: config.json does not say how long a text the model takes; set it")
        return wanted
    if wanted is not None and wanted > own:
        raise ConfigError(f"--max-model-len: {wanted} is more than the {own} positions of the model")
    return wanted or int(own)
