"""From the name of a model to its folder: a folder as it is, or a name of the Hugging Face hub, downloaded.

A GGUF file is what it is, whether it is named itself, by the one folder it is in, or by a hub name and `:Q4_K_M`.

A name that is neither is told what it is instead. Of a hub name config.json comes first, then all other small files,
and the weights when `look` had nothing against these.
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from ..options.config import ConfigError, PassingError
from .gguf.folder import PART, gguf_in, is_model, may_be_model
from .gguf.header import is_gguf
from .gguf.hub import Peek, look_at_header
from .mistral.folder import PARAMS, Form, is_wanted
from .pooling.sentence_folder import model_place
from .values import read_json
from .weights.places import INDEX, MISTRAL, OF_MISTRAL, PICKLED, PICKLED_INDEX, SINGLE, index_files, some

ADAPTER = "adapter_config.json"
CONFIG = ["config.json", "generation_config.json", PARAMS]
WITHIN = ["modules.json", "*/config.json"]  # of sentence-transformers, whose models may be in a folder inside
TEXTS = [
    *("*.json", "*.jinja", "tokenizer.model*", "*.tiktoken", "tiktoken.model", "merges.txt", "vocab.txt"),
    *("spiece.model", "sentencepiece.bpe.model", "spm.model", "source.spm"),
]
CODE = "*.py"  # of --trust-remote-code
GGUF_TYPE = re.compile(r"[-_.]((?:UD-)?(?:I?Q\d\w*|TQ\d_\d|(?:MX|NV)FP4\w*|B?F16|F32|FP16|FP32))$", re.IGNORECASE)
COMMIT = re.compile(r"[0-9a-f]{40}")
HUB_NAME = re.compile(r"[\w.-]+(/[\w.-]+)?")
HUB_URL = re.compile(r"https?://(?:www\.)?(?:huggingface\.co|hf\.co)/([\w.-]+/[\w.-]+)")
HUB_GGUF = re.compile(r"([\w.-]+/[\w.-]+):([\w.-]+)")  # a name of the hub, and which of its files
ONLY = "a folder with config.json, a tokenizer and safetensors is needed, or a GGUF file"

Look = Callable[[Path, bool], object]  # a folder; are all its small files there? ConfigError: no more is needed


def use_cache(folder: str | None) -> None:
    """Models of the hub are kept there from now on, by this process and those that it starts."""
    if folder is None:
        return
    from huggingface_hub import constants

    os.environ["HF_HUB_CACHE"] = constants.HF_HUB_CACHE = str(Path(folder).expanduser().absolute())


def find_folder(
    name: str,
    revision: str | None,
    look: Look | None = None,
    weights: bool = True,
    files: tuple[str, ...] = (),
    peek: Peek | None = None,
    more: tuple[str, ...] = (),
    form: Form | None = None,
) -> Path:
    """The folder of `name`, or its GGUF file; ConfigError says what it is, if it is no model. Without `weights` they
    are not downloaded. `files` are other names under which they may be, of which one is enough; `more` other small
    files that are wanted; `form` the one that options ask for.

    `look` is called with a folder of which config.json is there, and then with one of which all but the weights are;
    `peek` with the header of a GGUF file of the hub before it is downloaded.
    """
    path = Path(name).expanduser()
    try:
        if path.is_dir():
            return (gguf_in(path.resolve()) if form is None else None) or path.resolve()
        if path.name == "*.gguf" and path.parent.is_dir() and (found := gguf_in(path.parent.resolve())):
            return found  # a shell leaves it as it is where it is quoted
        if is_gguf(path):
            return path.absolute()  # not where a link leads: at the hub's cache only links have names
        if path.exists():
            raise ConfigError(f"model: {name} is {_kind_of_file(path)}; {ONLY}")
    except OSError as error:
        raise ConfigError(f"model: {_shown(name)} cannot be looked at: {error.strerror}") from None
    if "://" in name:
        known = HUB_URL.match(name)
        raise ConfigError(f"model: {name} is a URL; " + (f"the hub's name of it is {known[1]}" if known else ONLY))
    if (wanted := HUB_GGUF.fullmatch(name)) and not name.startswith((".", "~")):
        return _gguf_from_hub(wanted[1], wanted[2], revision, peek)
    if path.is_absolute() or name.startswith((".", "~")) or name.count("/") > 1 or not HUB_NAME.fullmatch(name):
        raise ConfigError(f"model: there is no folder {_shown(name)}{_near(path)}{_no_hub_name(name)}")
    return _from_hub(name, revision, look, weights, files, peek, [*TEXTS, *more], form)


def check_folder(folder: Path) -> None:
    """ConfigError if there is no config.json in it: what is there instead?"""
    if (folder / "config.json").exists():
        return
    if (folder / ADAPTER).exists():
        raise ConfigError(f"model: {folder} is a LoRA adapter; {_with_its_model(folder)}")
    below = sorted(path.parent.name for path in folder.glob("*/config.json"))
    inside = f"; these folders in it have one: {some(below)}" if below else ""
    raise ConfigError(f"model: {folder}/config.json is missing{inside}")


def _with_its_model(folder: Path) -> str:
    """How an adapter is served."""
    base = read_json(folder / ADAPTER).get("base_model_name_or_path")
    of = f", {base}," if isinstance(base, str) and base else ""
    return f"name its model{of} and beside it --enable-lora --lora-modules NAME={folder}, or merge them"


def _kind_of_file(path: Path) -> str:
    """What a file is, in words."""
    if not path.is_file():
        return "neither a folder nor a file"
    with path.open("rb") as file:
        head = file.read(512)
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
    return ", and a name of the hub is ORGANISATION/NAME, or ORGANISATION/NAME:TYPE for a GGUF file of a type"


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


def _from_hub(
    name: str,
    revision: str | None,
    look: Look | None,
    weights: bool,
    others: tuple[str, ...],
    peek: Peek | None,
    texts: list[str],
    form: Form | None,
) -> Path:
    """Download what is needed, the small things first, all of one commit."""
    folder = _download(name, revision, CONFIG)
    commit = folder.name if COMMIT.fullmatch(folder.name) else revision  # what is pushed meanwhile does not mix
    of_mistral = is_wanted(folder, form)
    if not (folder / "config.json").exists() and not of_mistral:
        folder = _download(name, commit, WITHIN)
    inside, _ = model_place(folder)
    if not (folder / inside / "config.json").exists() and look is not None and not (of_mistral and form):
        files, _ = _gguf_files(name, commit)
        if len(models := sorted({_gguf_type(file) for file in files})) == 1 and weights:
            return _gguf_from_hub(name, models[0], commit, peek)
        if models:
            raise ConfigError(f"model: {name} of the hub has several GGUF files; name one: {name}:{_either(models)}")
        if not of_mistral:
            raise ConfigError(f"model: {name} of the hub {_instead(name, commit, 'config.json')}")
    if look is not None:
        look(folder, False)
    folder = _download(name, commit, texts)
    if look is not None:
        look(folder, True)
    if CODE in texts:
        _code_elsewhere(folder / inside)
    return _weights_from_hub(name, commit, folder, of_mistral, others, texts) if weights else folder


def _weights_from_hub(
    name: str, commit: str | None, folder: Path, of_mistral: bool, others: tuple[str, ...], texts: list[str]
) -> Path:
    """In the first form that is there; the others hold the same once more."""
    forms = ((INDEX, SINGLE), (PICKLED_INDEX, PICKLED), *((file, file) for file in others))
    if of_mistral:
        forms = tuple((MISTRAL.listing, file) for file in (MISTRAL.single, f"{OF_MISTRAL}-*.safetensors"))
    inside, beside = model_place(folder)
    small = [*texts, *(f"{one}/{file}" for one in beside for file in (SINGLE, PICKLED))]
    for index, single in forms:
        at = folder / inside / index
        files = [str(inside / file) for file in (index_files(at) if index != single and at.exists() else [single])]
        folder = _download(name, commit, small + files)
        if any(next(folder.glob(file), None) for file in files):
            return folder
    raise ConfigError(f"model: {name} of the hub {_instead(name, commit, 'safetensors')}")


def _code_elsewhere(folder: Path) -> None:
    """That which config.json names of other repositories. What cannot be had may not be needed: the worker tells."""
    classes = read_json(folder / "config.json").get("auto_map")
    names = classes.values() if isinstance(classes, dict) else ()
    for other in sorted({name.partition("--")[0] for name in names if isinstance(name, str) and "--" in name}):
        with contextlib.suppress(ConfigError):
            _download(other, None, [CODE])


def _gguf_from_hub(name: str, wanted: str, revision: str | None, peek: Peek | None) -> Path:
    """A GGUF file, or all parts of one, of which the first is returned."""
    files, commit = _gguf_files(name, revision)
    own = [file for file in files if _gguf_type(file).lower() == wanted.lower()]
    if files and not own:
        kinds = _either(sorted({_gguf_type(file) for file in files}))
        raise ConfigError(f"model: {name} of the hub has no GGUF file of the type {wanted}; name one: {name}:{kinds}")
    if len({file.rpartition("/")[0] for file in own}) > 1 or len({len(PART.findall(file)) for file in own}) > 1:
        raise ConfigError(f"model: {name} of the hub has several GGUF files of the type {wanted}: {some(own)}")
    if own and peek is not None:
        look_at_header(name, own[0], commit, peek, _failures())
    folder = _download(name, revision, own or [f"*{form}*.gguf" for form in (wanted, wanted.upper(), wanted.lower())])
    there = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.gguf"))  # of the cache, without the hub
    found = own or [file for file in there if _gguf_type(file).lower() == wanted.lower()]
    if not found or not (folder / found[0]).exists():
        raise ConfigError(f"model: {name} of the hub {_instead(name, revision, 'GGUF file of the type ' + wanted)}")
    return folder / found[0]


def _gguf_files(name: str, revision: str | None) -> tuple[list[str], str | None]:
    """Those of models in a repository, and of which commit; none if the hub cannot be asked."""
    from huggingface_hub import HfApi

    try:  # list_repo_files would ask a hub that is not there for half a minute
        about = HfApi().model_info(name, revision=revision)
    except _failures():
        return [], revision
    files = {sibling.rfilename: sibling.rfilename.rpartition("/")[2] for sibling in about.siblings or []}
    maybe = sorted(file for file, own in files.items() if own.endswith(".gguf") and may_be_model(own))
    named = [file for file in maybe if is_model(files[file])]
    return named or ([] if ADAPTER in files else maybe), about.sha or revision


def _gguf_type(file: str) -> str:
    """`Q4_K_M` of `folder/Model-1B-Q4_K_M-00001-of-00002.gguf`, by the last part of the name."""
    stem = file.rpartition("/")[2].removesuffix(".gguf")
    stem = re.sub(r"-\d{5}-of-\d{5}$", "", stem)
    match = GGUF_TYPE.search(stem)
    return match[1] if match else stem


def _either(names: list[str]) -> str:
    return " or :".join(names[:12])


def _instead(name: str, commit: str | None, missing: str) -> str:
    """What a repository is that lacks something."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    try:
        files = [one.rfilename for one in HfApi().model_info(name, revision=commit).siblings or []]
    except HfHubHTTPError:  # it says less, then
        files = []
    except _failures() as error:
        kind = ConfigError if _is_offline() else PassingError
        lacks = f"the hub's cache here has no {missing} of {name}"
        raise kind(f"model: {lacks}, and the hub cannot be reached ({_cause(error)})") from None
    if ADAPTER in files:
        return "is a LoRA adapter; name its model, and this by --lora-modules (--enable-lora)"
    if found := [file for file in files if file.endswith((".bin", ".pth"))]:
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
        raise (ConfigError if _is_offline() else PassingError)(reason) from None
    except _failures() as error:
        raise PassingError(f"{here} it cannot be had from the hub: {_cause(error)}") from None
    raise ConfigError(reason) from None


def _failures() -> tuple[type[Exception], ...]:
    """What a request to the hub may raise, whatever HTTP client its library uses."""
    from huggingface_hub.errors import HfHubHTTPError

    return (OSError, *(base for base in HfHubHTTPError.__bases__ if issubclass(base, Exception)))


def _is_offline() -> bool:
    """Is the hub not to be asked?"""
    return os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "TRUE", "YES", "ON")


def _cause(error: BaseException) -> str:
    """The innermost reason, on one line."""
    if _is_offline():
        return "HF_HUB_OFFLINE is set"
    while error.__cause__ is not None:
        error = error.__cause__
    return (str(error).strip() or type(error).__name__).splitlines()[0]
