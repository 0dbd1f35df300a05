"""The table of features row by row: what its tests found, and what a server answered to what the row names.

A row works where everything that was asked for it was right, and its test passed. Of a row that is `part`, `untried` or
`no` the line says so, with the table's reason.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import xml.etree.ElementTree as ElementTree
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path

from .features import NAMED, Seen, asked, rows
from .launched import ROOT

SHOWN = 70  # characters of an answer
SKIPPED = "skipped"  # its test, for want of something that is not installed here
Results = dict[str, Counter[str]]  # of a test: how many of its cases passed, failed, were skipped


def every_row(reports: Sequence[Path] = ()) -> Counter[str]:
    """Each row of the table of features: its test is run, and what it names is asked for; prints a line a row."""
    table = rows()
    results = _read(reports) if reports else _run(test for row in table for test in NAMED.findall(row[3]))
    found, states = Counter[str](), Counter[str]()
    seen = asked()
    for number, row in enumerate(table, 1):
        state, words = _judge(row, seen, results)
        print(f"{number:3} {state:7} {row[0]}: {words}", flush=True)
        if state != SKIPPED:
            found["right" if state == row[1] else f"{row[0]}: the table says {row[1]}, it is {state}"] += 1
        states[state] += 1
    print(", ".join(f"{state}: {count}" for state, count in states.most_common()), flush=True)
    return found


def _judge(row: list[str], seen: list[Seen], results: Results) -> tuple[str, str]:
    """What the row is, and by what."""
    name, state, how, shown = row
    if state == "no":
        return state, how
    named = set(NAMED.findall(how))
    parts = [one for one in seen if one.name in named or name.startswith(one.name)]
    tests = {test: results[test] for test in NAMED.findall(shown)}
    words = [f"{one.name} {'right' if one.right else 'WRONG'} ({one.answer[:SHOWN]})" for one in parts]
    for test, told in tests.items():
        cases = ", ".join(f"{count} {kind}" for kind, count in sorted(told.items())) or "not run"
        words.append(f"{test}: {cases}")
    failed = any(told["failed"] or not told.keys() & {"passed", "skipped"} for told in tests.values())
    if failed or not all(one.right for one in parts):
        return "broken", "; ".join(words)
    if not all(told["passed"] for told in tests.values()):
        return SKIPPED, "; ".join(words)
    return state, "; ".join(words if state == "yes" else [how, *words])


def _run(tests: Iterable[str]) -> Results:
    """The cases that are quick, of tests that have none all."""
    names = sorted(set(tests))
    with tempfile.TemporaryDirectory() as folder:
        quick, slow = Path(folder, "quick.xml"), Path(folder, "slow.xml")
        _pytest(quick, "not slow", names)
        results = _read([quick])
        if left := [name for name in names if not results[name]]:
            _pytest(slow, "slow", left)
            results.update({name: told for name, told in _read([slow]).items() if told})
    return results


def _pytest(report: Path, mark: str, tests: list[str]) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-m", mark, "--junitxml", str(report), *tests]
    subprocess.run(command, cwd=ROOT, check=False)  # what failed stands in the report


def _read(reports: Sequence[Path]) -> Results:
    """Of pytest's reports."""
    found: Results = defaultdict(Counter)
    for report in reports:
        for case in ElementTree.parse(report).iter("testcase"):
            file = case.get("classname", "").replace(".", "/") + ".py"
            kinds = {child.tag for child in case} & {"failure", "error", "skipped"}
            kind = "failed" if kinds & {"failure", "error"} else "skipped" if kinds else "passed"
            found[f"{file}::{case.get('name', '').partition('[')[0]}"][kind] += 1
    return found
