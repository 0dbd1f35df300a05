"""How much memory can be taken: the machine's, or what limits of cgroups leave. Knows /proc and cgroups."""

from __future__ import annotations

from pathlib import Path

CGROUP = Path("/sys/fs/cgroup")
OWN_CGROUP = Path("/proc/self/cgroup")
UNLIMITED = 1 << 60  # cgroup v1 says "no limit" with a huge number


def available_bytes() -> int:
    """Memory that can be taken without swapping: the machine's, or what a limit of the cgroup leaves."""
    lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    free = int(lines["MemAvailable"].split()[0]) * 1024
    return min([free, *(room for folder in cgroup_folders() if (room := _room(folder)) is not None)])


def cgroup_folders(root: Path = CGROUP, own: Path = OWN_CGROUP) -> list[Path]:
    """The folders whose limits hold for this process: its cgroup of each hierarchy (v2 or v1) and those above it."""
    folders: list[Path] = []
    for line in own.read_text().splitlines():
        _, controllers, path = line.split(":", 2)
        top = root / controllers if controllers else root
        folder = top / path.lstrip("/")
        folders += [place for place in (folder, *folder.parents) if place == top or top in place.parents]
    return [folder for folder in dict.fromkeys(folders) if folder.is_dir()]


def cgroup_words(path: Path) -> list[str]:
    """The words of a small file; none where it does not exist (another version of cgroups)."""
    try:
        return path.read_text().split()
    except FileNotFoundError:
        return []


def _room(folder: Path) -> int | None:
    """The bytes that a cgroup's memory limit leaves; files' pages can be dropped, those of mapped weights too, as
    MemAvailable has it.
    """
    for limit, usage in (("memory.max", "memory.current"), ("memory.limit_in_bytes", "memory.usage_in_bytes")):
        words, used = cgroup_words(folder / limit), cgroup_words(folder / usage)
        if words and used and words[0].isdigit() and int(words[0]) < UNLIMITED:
            return max(0, int(words[0]) - max(0, int(used[0]) - _cached_bytes(folder)))
    return None


def _cached_bytes(folder: Path) -> int:
    """The pages of files that a cgroup, with those below it (in v1 `total_…`), has in memory; not those of shared
    memory, which have nowhere else to be.
    """
    words = cgroup_words(folder / "memory.stat")
    said = dict(zip(words[::2], words[1::2], strict=False))
    return sum(int(said.get(f"total_{name}", said.get(name, 0))) for name in ("inactive_file", "active_file"))
