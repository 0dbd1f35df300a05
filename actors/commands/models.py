"""`actorserve models list | pull | remove | weights`: the models in the hub's cache on this machine, and weights that
starts have made ready (--weight-cache-gib).
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from ..model.mistral.folder import FORMS, Form
from ..model.names import CODE, find_folder
from ..model.weights.weight_cache import WeightFile, remove, remove_parts, weight_files
from ..options.config import ConfigError

if TYPE_CHECKING:
    from huggingface_hub import CachedRepoInfo, HFCacheInfo

DESCRIPTION = """The models of the Hugging Face hub that lie on this machine, where `actorserve launch NAME` finds them.

    actorserve models list
    actorserve models pull Qwen/Qwen3-0.6B
    actorserve models remove Qwen/Qwen3-0.6B
    actorserve models weights            # what starts have made ready for the next ones, by model
    actorserve models weights --remove   # all of it, or that of the models that are named"""
MIB = float(1 << 20)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """What is done, and with which model."""
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    listed = actions.add_parser("list", help="those that are here, with their sizes", allow_abbrev=False)
    listed.add_argument("--json", action="store_true", help="as JSON")
    pulled = actions.add_parser("pull", help="download one, or what is new of it", allow_abbrev=False)
    pulled.add_argument("--revision", help="a branch, a tag or a commit")
    pulled.add_argument("--trust-remote-code", action="store_true", help="the code beside its weights, too")
    pulled.add_argument(
        *("--load-format", "--config-format"),
        choices=FORMS,
        help="which of two forms, as `launch` will be given it: mistral, or hf, which is taken of both without it",
    )
    removed = actions.add_parser("remove", help="delete one from the cache", allow_abbrev=False, aliases=["rm"])
    removed.add_argument("model", metavar="NAME", help="on the hub, such as Qwen/Qwen3-0.6B; all that is here of it")
    pulled.add_argument("model", metavar="NAME", help="on the hub, such as Qwen/Qwen3-0.6B, or org/name:Q4_K_M")
    ready = actions.add_parser("weights", help="weights that starts have made ready, with their sizes")
    ready.add_argument("models", metavar="MODEL", nargs="*", help="a part of the folder's path; all if left out")
    ready.add_argument("--remove", action="store_true", help="delete them")


def run(arguments: argparse.Namespace) -> int:
    """0. ConfigError where the hub or the cache has no such model."""
    actions = {"list": _list, "pull": _pull, "remove": _remove, "rm": _remove, "weights": _weights}
    return actions[arguments.action](arguments)


def _list(arguments: argparse.Namespace) -> int:
    found: list[dict[str, Any]] = [
        {
            "name": repo.repo_id,
            "bytes": repo.size_on_disk,
            "revisions": sorted(ref for revision in repo.revisions for ref in revision.refs),
            "path": str(repo.repo_path),
        }
        for repo in sorted(_models(_cache()), key=lambda repo: repo.repo_id)
    ]
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(found)).decode())
        return 0
    for model in found:
        print(f"{model['bytes'] / MIB:10,.1f} MiB  {model['name']}  {' '.join(model['revisions'])}".rstrip())
    if not found:
        print("no models in the cache", file=sys.stderr)
    return 0


def _pull(arguments: argparse.Namespace) -> int:
    if Path(arguments.model).exists():
        raise ConfigError(f"{arguments.model} is a path of this machine: name a model of the hub")
    more = (CODE,) if arguments.trust_remote_code else ()
    form = arguments.load_format and Form(arguments.load_format, f"--load-format {arguments.load_format}")
    # a model, as `launch` wants one
    print(find_folder(arguments.model, arguments.revision, look=lambda *_: None, more=more, form=form))
    return 0


def _remove(arguments: argparse.Namespace) -> int:
    cache = _cache()
    repo = next((repo for repo in _models(cache) if repo.repo_id == arguments.model), None)
    if cache is None or repo is None:
        whole, typed, _ = arguments.model.partition(":")
        of_one = f"; a type is not removed alone, but with all of {whole}" if typed else ""
        raise ConfigError(f"{arguments.model} is not in the cache{of_one}; `actorserve models list` says what is")
    plan = cache.delete_revisions(*(revision.commit_hash for revision in repo.revisions))
    plan.execute()
    print(f"{plan.expected_freed_size / MIB:,.1f} MiB of {repo.repo_id} are removed")
    return 0


def _weights(arguments: argparse.Namespace) -> int:
    found = [one for one in weight_files() if _is_asked(one, arguments.models)]
    if arguments.models and not found:
        raise ConfigError(f"{' '.join(arguments.models)}: no weights of it are kept")
    for one in found:
        print(f"{one.bytes / MIB:10,.1f} MiB  {one.model}  {one.path.name}")
    if arguments.remove:
        remove_parts()
        print(f"{remove(found) / MIB:,.1f} MiB are removed")
    elif not found:
        print("no weights are kept", file=sys.stderr)
    return 0


def _is_asked(one: WeightFile, models: list[str]) -> bool:
    """By its folder, or by the name that it has on the hub."""
    return not models or any(name in one.model or name.replace("/", "--") in one.model for name in models)


def _models(cache: HFCacheInfo | None) -> list[CachedRepoInfo]:
    return [repo for repo in cache.repos if repo.repo_type == "model"] if cache is not None else []


def _cache() -> HFCacheInfo | None:
    """None where nothing was ever downloaded."""
    from huggingface_hub import CacheNotFound, scan_cache_dir

    try:
        return scan_cache_dir()
    except CacheNotFound:
        return None
