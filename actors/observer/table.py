"""The actors as a table, and how its numbers are written."""

from __future__ import annotations

from collections.abc import Mapping

from rich.table import Table
from rich.text import Text

from ..telemetry.snapshot import ActorStatus, Snapshot

GOOD, BAD, BETWEEN = "green", "bold red", "yellow"
STYLES = {"ready": GOOD, "hung": BAD, "dead": BAD, "stopped": BAD}
UNITS = ("B", "KiB", "MiB", "GiB", "TiB")
NOTHING = "-"
LATE_S = 1.0  # a message that waits for longer stands out
WIDE = 100  # columns that the whole table needs, about; a narrower one has short names and no bytes of mailboxes
MODEL = "model"  # only where there are several
COLUMNS = {  # name: where there is little room
    "actor": "actor",
    MODEL: "model",
    "pid": "pid",
    "state": "state",
    "up": "up",
    "restarts": "re",
    "heartbeat": "beat",
    "mailbox": "mail",
    "bytes": "",
    "oldest": "oldest",
    "CPU %": "CPU %",
    "memory": "memory",
}
LEFT = ("actor", MODEL, "state")


def actor_table(snapshot: Snapshot, cpu: Mapping[str, float | None], width: int) -> Table:
    """One line an actor; `cpu` has their percentages of a core by name, `width` is that of the output."""
    wide = width >= WIDE
    several = any(actor.model for actor in snapshot.actors)
    shown = [name for name, short in COLUMNS.items() if (wide or short) and (several or name != MODEL)]
    table = Table(box=None, pad_edge=False, padding=(0, 2 if wide else 1, 0, 0), header_style="bold")
    for name in shown:
        table.add_column(name if wide else COLUMNS[name], justify="left" if name in LEFT else "right", no_wrap=True)
    for actor in snapshot.actors:
        cells = dict(zip(COLUMNS, _cells(actor, cpu.get(actor.name)), strict=True))
        table.add_row(*(cells[name] for name in shown))
    return table


def held_lines(snapshot: Snapshot) -> list[Text]:
    """Engines that stand still because somebody has said so."""
    one = len(snapshot.held) == 1 and all(engine == 0 for engine in snapshot.held)
    named = ((f"engine {engine}" if not one else "the engine", held) for engine, held in snapshot.held.items())
    return [Text(f"{name} is {held}", BETWEEN) for name, held in named]


def _cells(actor: ActorStatus, cpu: float | None) -> list[str | Text]:
    return [
        actor.name,
        actor.model,
        NOTHING if actor.pid is None else str(actor.pid),
        Text(actor.state, STYLES.get(actor.state, BETWEEN)),
        NOTHING if actor.parked and actor.pid is None else duration(actor.up_s),
        str(actor.restarts),
        NOTHING if actor.heartbeat_s is None else duration(actor.heartbeat_s),
        str(actor.waiting_records),
        size(actor.waiting_bytes),
        NOTHING if actor.oldest_s is None else Text(duration(actor.oldest_s), BAD if actor.oldest_s > LATE_S else ""),
        NOTHING if cpu is None else f"{cpu:.1f}",
        NOTHING if actor.memory_bytes is None else size(actor.memory_bytes),
    ]


def lifetime_cpu(snapshot: Snapshot) -> dict[str, float | None]:
    """Each actor's percentage of a core over its life, by name."""
    return {
        actor.name: None if actor.cpu_s is None or not actor.up_s else 100 * actor.cpu_s / actor.up_s
        for actor in snapshot.actors
    }


def duration(seconds: float) -> str:
    """Two significant places or so: 0.4 ms, 3.2 s, 5 min, 2.5 h, 12 d."""
    if seconds < 0.9995:
        return f"{seconds * 1000:.1f} ms" if seconds < 0.01 else f"{seconds * 1000:.0f} ms"
    if seconds < 60:
        return f"{seconds:.1f} s"
    for unit, length, most in (("min", 60.0, 120), ("h", 3600.0, 48)):
        if seconds < most * length:
            return f"{seconds / length:.1f} {unit}" if seconds < 10 * length else f"{seconds / length:.0f} {unit}"
    return f"{seconds / 86400:.0f} d"


def size(count: float) -> str:
    """12 B, 3.4 KiB, 250 MiB."""
    unit = 0
    while count >= 1000 and unit < len(UNITS) - 1:
        count /= 1024
        unit += 1
    return f"{count:.0f} {UNITS[unit]}" if not unit or count >= 99.5 else f"{count:.1f} {UNITS[unit]}"
