"""From the name of a model to its folder: a folder as it is, or a name of the Hugging Face hub, downloaded.

A name that is neither is told what it is instead. Of a hub name config.json comes first, then all other small files,
and the weights when `look` had nothing against these.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from ..options.config import ConfigError
from .weight_files import INDEX, PICKLED, PICKLED_INDEX, SINGLE, index_files, some

CONFIG = ["config.json", "generation_config.json"]
TEXTS = ["*.json", "*.jinja", "tokenizer.model"]
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_URL = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")
GGUF = b"GGUF"  # the first bytes of such a file
ONLY = "a folder with config.json, a tokenizer and safetensors is needed"

Look = Callable[[Path, bool], object]  # a folder; are all its small files there? ConfigError: no more is needed


def find_folder(name: str, revision: str | None, look: Look | None = None, weights: bool = True) -> Path:
    """The folder of `name`; ConfigError says what it is, if it is no model. Without `weights` they are not downloaded.

    `look` is called with a folder of which config.json is there, and then with one of which all but the weights are.
    """
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return path.resolve()
        if path.exists():
            raise ConfigError(f"model: {name} is {_kind_of_file(path)}; {ONLY}")
    except OSError as error:
        raise ConfigError(f"model: {_shown(name)} cannot be looked at: {error.strerror}") from None
    if "://" in name:
        known = HUB_URL.match(name)
        raise ConfigError(f"model: {name} is a URL; " + (f"the hub's name of it is {known[1]}" if known else ONLY))
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or not HUB_NAME.fullmatch(name):
        raise ConfigError(f"model: there is no folder {_shown(name)}{_near(path)}{_no_hub_name(name)}")
    return _from_hub(name, revision, look, weights)


def check_folder(folder: Path) -> None:
    """ConfigError if there is no config.json in it: what is there instead?"""
    if (folder / "config.json").exists():
        return
    if (folder / "adapter_config.json").exists():
        raise ConfigError(f"model: {folder} is a LoRA adapter; merge it into its model, and name that folder")
    if found := sorted(path.name for path in folder.glob("*.gguf")):
        raise ConfigError(f"model: {folder} has GGUF files ({some(found)}), which are not read; {ONLY}")
    below = sorted(path.parent.name for path in folder.glob("*/config.json"))
    inside = f"; these folders in it have one: {some(below)}" if below else ""
    raise ConfigError(f"model: {folder}/config.json is missing{inside}")


def _kind_of_file(path: Path) -> str:
    """What a file is, in words."""
    if not path.is_file():
        return "neither a folder nor a file"
    with path.open("rb") as file:
        head = file.read(512)
    if head.startswith(GGUF):
        return "a GGUF file, which is not read"
    if path.suffix == ".safetensors":
        return f"a file of weights (its folder is {path.resolve().parent})"
    if path.suffix in (".bin", ".pt", ".pth") or head.startswith(b"PK"):
        return "a file of weights in another form than safetensors"
    try:
        head.decode()
    except UnicodeDecodeError as error:
        if error.end < len(head):
            return "a binary file"
    return f"a text file{' of a model folder, ' + str(path.resolve().parent) if path.name == 'config.json' else ''}"


def _shown(name: str) -> str:
    return name if name.isprintable() and len(name) < 200 else repr(name[:200])


def _no_hub_name(name: str) -> str:
    """What is to be said of a name that may have been meant for the hub."""
    if Path(name).is_absolute() or name.startswith((".", "~")):
        return ""
    if "gguf" in name.lower():
        return f", and GGUF files are not read; {ONLY}"
    return ", and a name of the hub is ORGANISATION/NAME"


def _near(path: Path) -> str:
    """Folders with names that are near to the first part of it that does not exist."""
    parent, wanted = path.absolute().parent, path.name
    while not parent.is_dir():
        parent, wanted = parent.parent, parent.name
    try:
        names = [entry.name for entry in os.scandir(parent) if entry.is_dir()]
    except OSError:  # it may be passed through, and not read
        return ""
    near = get_close_matches(wanted, names, 3, 0.7) or [name for name in names if name.lower() == wanted.lower()]
    return f" (did you mean {' or '.join(str(parent / name) for name in near)}?)" if near else ""


def _from_hub(name: str, revision: str | None, look: Look | None, weights: bool) -> Path:
    """Download what is needed, the small things first, all of one commit."""
    folder = _download(name, revision, CONFIG)
    commit = folder.name if COMMIT.fullmatch(folder.name) else revision  # what is pushed meanwhile does not mix
    if not (folder / "config.json").exists() and look is not None:
        raise ConfigError(f"model: {name} of the hub {_instead(name, commit, 'config.json')}")
    if look is not None:
        look(folder, False)
    folder = _download(name, commit, TEXTS)
    if look is not None:
        look(folder, True)
    if not weights:
        return folder
    for index, single in ((INDEX, SINGLE), (PICKLED_INDEX, PICKLED)):  # the others hold the same once more
        files = index_files(folder / index) if (folder / index).exists() else [single]
        folder = _download(name, commit, TEXTS + files)
        if any((folder / file).exists() for file in files):
            return folder
    raise ConfigError(f"model: {name} of the hub {_instead(name, commit, 'safetensors')}")


def _instead(name: str, commit: str | None, missing: str) -> str:
    """What a repository is that lacks something."""
    from huggingface_hub import HfApi

    try:
        files = HfApi().list_repo_files(name, revision=commit)
    except _failures():  # it says less, then
        files = []
    if "adapter_config.json" in files:
        return "is a LoRA adapter; merge it into its model, and name that"
    if found := [file for file in files if file.endswith((".gguf", ".bin", ".pth"))]:
        return f"has no {missing}, but {some(found)}, which are not read"
    return f"has no {missing}: it is no model that can be served"


def _download(name: str, revision: str | None, patterns: list[str]) -> Path:
    """Files of the hub, or of its cache when it cannot be reached; in the cache they stay."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import (
        GatedRepoError,
        HFValidationError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    here = f"model: there is no folder {name}{_near(Path(name))}, and"
    try:
        return Path(snapshot_download(name, revision=revision, allow_patterns=patterns))
    except GatedRepoError:
        reason = f"model: {name} is gated: ask for access at the hub, and set HF_TOKEN"
    except RevisionNotFoundError:
        reason = f"--revision: {name} has no {revision} at the hub"
    except RepositoryNotFoundError:
        reason = f"{here} the hub has no such model (or it is private: set HF_TOKEN); is it a typo?"
    except HFValidationError:
        reason = f"{here} a name of the hub is ORGANISATION/NAME"
    except LocalEntryNotFoundError as error:
        reason = f"{here} the hub cannot be reached ({_cause(error)}), nor is all of it in the hub's cache here"
    except _failures() as error:
        reason = f"{here} it cannot be had from the hub: {_cause(error)}"
    raise ConfigError(reason) from None


def _failures() -> tuple[type[Exception], ...]:
    """What a request to the hub may raise, whatever HTTP client its library uses."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)))


def _cause(error: BaseException) -> str:
    """The innermost reason, on one line."""
    if os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON"):
        return "HF_HUB_OFFLINE is set"
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
