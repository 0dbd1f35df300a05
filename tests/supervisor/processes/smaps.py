"""Lines of /proc/PID/smaps as tests need them."""

from __future__ import annotations


def smaps(*mappings: tuple[str, int, str]) -> list[str]:
    """Of mappings, each with its first line, KB of anonymous pages, and flags."""
    return [
        line
        for head, anonymous, flags in mappings
        for line in (f"{head}\n", "Rss:   2000 kB\n", f"Anonymous:  {anonymous:>6} kB\n", f"VmFlags: {flags} \n")
    ]
