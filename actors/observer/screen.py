"""What `actorserve top` shows: figures of the engine with small graphs of their past, and the actors."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import islice

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ..telemetry.adapters import adapters_words, registry_of
from .attach import Attached
from .rates import Meter, Rates
from .table import NOTHING, actor_table, duration, held_lines

BARS = "▁▂▃▄▅▆▇█"
GRAPH = 40  # columns
FIGURES: tuple[tuple[str, str, Callable[[Rates], str]], ...] = (  # what it is called, whose graph, how it is written
    ("tokens/s", "tokens_s", lambda rates: f"{rates.tokens_s:,.0f}"),
    ("prompt tokens/s", "prompt_tokens_s", lambda rates: f"{rates.prompt_tokens_s:,.0f}"),
    ("requests/s", "requests_s", lambda rates: f"{rates.requests_s:.1f}"),
    ("running / waiting", "running", lambda rates: f"{rates.running:.0f} / {rates.waiting:.0f}"),
    ("steps/s", "steps_s", lambda rates: f"{rates.steps_s:.1f}"),
    ("step time", "step_s", lambda rates: NOTHING if rates.step_s is None else duration(rates.step_s)),
    ("tokens a step", "step_tokens", lambda rates: _number(rates.step_tokens)),
    ("KV in use", "kv_use", lambda rates: f"{100 * rates.kv_use:.1f} %"),
    ("prefix-cache hits", "hit_rate", lambda rates: _percent(rates.hit_rate)),
    ("first token (50 / 95 %)", "to_first_s", lambda rates: _times(rates.to_first_s, rates.to_first_late_s)),
    ("between tokens (50 / 95 %)", "between_s", lambda rates: _times(rates.between_s, rates.between_late_s)),
)


def screen(server: Attached, meter: Meter, rates: Rates | None, width: int) -> RenderableType:
    """All of it; without rates, which need two looks, only the actors."""
    assert meter.last is not None
    description = server.description
    names = ", ".join(served.name for served in server.system.models)
    head = Text(f"{description.url}  {names}  up {duration(server.up_s)}", "bold")
    parts: list[RenderableType] = [head, *held_lines(meter.last.snapshot), ""]
    if (registry := registry_of(server.system, server.segment)) is not None:
        parts += [Text(f"adapters  {adapters_words(registry.all())}", no_wrap=True, overflow="ellipsis"), ""]
    if rates is not None:
        parts += [_figures(meter, rates), ""]
    return Group(*parts, actor_table(meter.last.snapshot, meter.cpu, width))


def _figures(meter: Meter, rates: Rates) -> Table:
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(no_wrap=True, style="cyan")
    for label, name, written in FIGURES:
        table.add_row(label, written(rates), graph(meter.history[name]))
    return table


def graph(values: Iterable[float | None]) -> str:
    """The last GRAPH values as bars, the highest of which is the largest value; a gap where there is none."""
    known = list(values)
    shown = list(islice(known, max(0, len(known) - GRAPH), None))
    top = max((value for value in shown if value is not None), default=0.0)
    return "".join(" " if value is None else _bar(value, top) for value in shown)


def _bar(value: float, top: float) -> str:
    return BARS[min(len(BARS) - 1, int(value / top * len(BARS)))] if top > 0 else BARS[0]


def _number(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1f}"


def _percent(value: float | None) -> str:
    return NOTHING if value is None else f"{100 * value:.0f} %"


def _times(median: float | None, late: float | None) -> str:
    return NOTHING if median is None or late is None else f"{duration(median)} / {duration(late)}"
