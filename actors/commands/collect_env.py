"""`actorserve collect-env`: what a report of a fault should say of the machine."""

from __future__ import annotations

import argparse
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import msgspec

from actorserve.shm.free_memory import available_bytes

from ..model.memory.machine import cpu_flags, total_bytes, usable_cores
from ..telemetry.versions import versions

DESCRIPTION = """Say what a report of a fault should say of this machine: versions, processor, memory, GPUs, limits and
the variables that change what the server does. Nothing is started, and no key is shown."""
PREFIXES = ("ACTORSERVE_", "LLAMA_ARG_", "CUDA_", "HF_", "OMP_", "TRITON_", "XDG_", "MALLOC_")
VARIABLES = ("CC", "LD_PRELOAD", "LD_LIBRARY_PATH", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY")
HIDDEN = ("KEY", "KEYS", "TOKEN", "SECRET", "PASSWORD", "PROXY")  # ends of words in a name: nobody's business
WHO = re.compile(r"(?<=://)[^\s@]*@")  # user and password in an address
INTERESTING = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16", "asimd", "asimddp", "i8mm")
GIB = float(1 << 30)
ANSWER_S = 20.0  # for a program that is asked
SHARED_MEMORY = Path("/dev/shm")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """One form for people, one for programs."""
    parser.add_argument("--json", action="store_true", help="as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Always 0: what cannot be found out says so in its place."""
    facts = {name: find() for name, find in TOPICS.items()}
    if arguments.json:
        print(msgspec.json.format(msgspec.json.encode(facts)).decode())
        return 0
    for topic, found in facts.items():
        print(f"{topic}:")
        for name, value in found.items():
            print(f"  {name}: {value}")
        if not found:
            print("  none")
    return 0


def _system() -> dict[str, str]:
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    return {
        "system": release.get("PRETTY_NAME", platform.system()),
        "kernel": platform.release(),
        "libc": " ".join(platform.libc_ver()),
        "compiler": _first_line(os.environ.get("CC", "cc"), "--version"),
        "python": sys.executable,
        "container": "yes"
        if Path("/.dockerenv").exists() or Path("/run/.containerenv").exists()
        else "not known to be",
    }


def _processor() -> dict[str, str]:
    flags = cpu_flags()
    return {
        "architecture": platform.machine(),
        "model": _cpu_name(),
        "cores that may be used": f"{usable_cores()} of {os.cpu_count()}",
        "instructions": " ".join(flag for flag in INTERESTING if flag in flags) or "none that matter here",
    }


def _cpu_name() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in ("model name", "Model"):
            return value.strip()
    return "not said"


def _memory() -> dict[str, str]:
    try:
        shared = shutil.disk_usage(SHARED_MEMORY)
        free = f"{shared.free / GIB:.1f} of {shared.total / GIB:.1f} GiB free"
    except OSError as error:
        free = str(error.strerror)
    return {
        "available": f"{available_bytes() / GIB:.1f} of {total_bytes() / GIB:.1f} GiB",
        str(SHARED_MEMORY): free,
    }


def _gpus() -> dict[str, str]:
    said = _output("nvidia-smi", "--query-gpu=index,name,memory.total,driver_version", "--format=csv,noheader")
    lines = said.splitlines()
    return {"nvidia-smi": "; ".join(lines)} if lines else {"nvidia-smi": "nothing"}


def _limits() -> dict[str, str]:
    named = {"open files": resource.RLIMIT_NOFILE, "locked memory": resource.RLIMIT_MEMLOCK}
    named |= {"processes": resource.RLIMIT_NPROC, "address space": resource.RLIMIT_AS}
    return {name: " of ".join(map(_limit, resource.getrlimit(limit))) for name, limit in named.items()}


def _limit(value: int) -> str:
    return "unlimited" if value == resource.RLIM_INFINITY else str(value)


def _variables() -> dict[str, str]:
    names = [name for name in sorted(os.environ) if name.startswith(PREFIXES) or name in VARIABLES]
    return {name: "(set)" if _is_hidden(name) else WHO.sub("…@", os.environ[name]) for name in names}


def _is_hidden(name: str) -> bool:
    """`TOKENIZER` and `TOKENS` are words of their own; what ends with `_FILE` names a file, which may be told."""
    return any(word.endswith(HIDDEN) for word in name.upper().split("_")) and not name.endswith("_FILE")


def _first_line(*command: str) -> str:
    return (_output(*command).splitlines() or ["none"])[0]


def _output(*command: str) -> str:
    """Of a program that may not be there, or may not answer."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=ANSWER_S, check=True).stdout
    except (OSError, subprocess.SubprocessError):
        return ""


TOPICS: dict[str, Callable[[], dict[str, str]]] = {
    "versions": versions,
    "system": _system,
    "processor": _processor,
    "memory": _memory,
    "GPUs": _gpus,
    "limits": _limits,
    "variables": _variables,
}
