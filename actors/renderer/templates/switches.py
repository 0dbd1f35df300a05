"""Whether a model thinks, and how much, by names that few templates have for it."""

from __future__ import annotations

from typing import Any, NamedTuple

from jinja2 import nodes

EFFORT, MODE = "thinking_effort", "thinking_mode"  # of Kimi K3; of MiniMax M3
THINKING = ("enable_thinking", "thinking")
LEAST = "low"  # that such a model can think
MODES = {True: "enabled", False: "disabled"}
EFFORTS = {"minimal": "low", "medium": "high", "xhigh": "max"}  # which there are not: the nearest, and rather more


class Switches(NamedTuple):
    """Which of these names a template reads."""

    effort: bool = False
    mode: bool = False
    always: bool = False  # the model thinks, by `reasoning_effort` more or less: gpt-oss


def read_switches(template: nodes.Template) -> Switches:
    """A mode that knows other words is left alone."""
    names = {name.name for name in template.find_all(nodes.Name) if name.ctx == "load"}
    words = {const.value for const in template.find_all(nodes.Const) if isinstance(const.value, str)}
    turned = {EFFORT, MODE, *THINKING} & names or "none" in words
    return Switches(
        EFFORT in names, MODE in names and words.issuperset(MODES.values()), "reasoning_effort" in names and not turned
    )


def with_switches(variables: dict[str, Any], switches: Switches) -> dict[str, Any]:
    """The variables, and what they say by the names that requests have for it; the template's own go before."""
    said: dict[str, Any] = {}
    effort = variables.get("reasoning_effort")
    if switches.effort and effort not in (None, "none"):
        said[EFFORT] = EFFORTS.get(effort, effort) if isinstance(effort, str) else effort
    thinks = variables.get("enable_thinking", variables.get("thinking"))
    if switches.always and (effort == "none" or (effort is None and thinks is False)):
        return variables | {"reasoning_effort": LEAST}
    if switches.mode and isinstance(thinks, bool):
        said[MODE] = MODES[thinks]
    return said | variables
