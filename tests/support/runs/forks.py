"""`--forks N`: tests run in N processes that are copies of one which has collected them, so that what they import, and
what pytest makes of them, is there once. Each asks for the next file, or folder that shares servers, before it runs the
last test of what it has. One that dies fails the test it was at, and another copy goes on behind that.
"""

from __future__ import annotations

import atexit
import os
import pickle
import sys
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from multiprocessing.connection import Connection, Pipe, wait
from typing import Any, NoReturn

import pytest

from tests.support.runs.costs import Costs
from tests.support.runs.sharing import unit

Unit = deque[int]  # places in session.items


class Forks:
    """A plugin of the process that collects."""

    def __init__(self, config: pytest.Config) -> None:
        self._count: int = config.getoption("forks")
        reporter: Any = config.pluginmanager.get_plugin("terminalreporter")
        if self._count and reporter:
            reporter.showfspath = False  # no line of its own for each file: they come in turns

    @staticmethod
    def add_option(parser: pytest.Parser) -> None:
        parser.getgroup("actorserve").addoption(
            "--forks", type=int, default=0, metavar="N", help="run tests in N copies of the process that collects them"
        )

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool | None:
        if not self._count or session.testsfailed or session.config.option.collectonly:
            return None
        Run(session, self._count).run()
        return True


class Run:
    """The parent's part: who runs what, and what is told of it."""

    def __init__(self, session: pytest.Session, count: int) -> None:
        self._session = session
        self._hook = session.config.hook
        self._count = count
        self._units = units(item.nodeid for item in session.items)
        self._children: dict[Any, Child] = {}

    def run(self) -> None:
        capture: Any = self._session.config.pluginmanager.get_plugin("capturemanager")
        if capture:
            capture.stop_global_capturing()  # copies would write into one file
        sys.stdout.flush()
        sys.stderr.flush()
        threads = len(os.listdir("/proc/self/task"))
        assert threads == 1, f"what is collected has begun {threads - 1} threads, which copies would wait for in vain"
        try:
            for _ in range(min(self._count, len(self._units))):
                self._begin()
            while self._children:
                for connection in wait(list(self._children)):
                    self._hear(self._children[connection])
                self._look_for_an_end()
        finally:
            for child in self._children.values():
                child.connection.close()  # it stops behind the test it is at
            for child in self._children.values():
                os.waitpid(child.pid, 0)

    def _begin(self) -> None:
        ours, theirs = Pipe()
        pid = os.fork()
        if not pid:
            for connection in (ours, *self._children):
                connection.close()
            _live(self._session, theirs)
        theirs.close()
        self._children[ours] = Child(pid, ours)

    def _hear(self, child: Child) -> None:
        try:
            kind, *told = child.connection.recv()
        except (EOFError, ConnectionResetError):
            self._bury(child)
            return
        if kind == "next":
            child.given.append(self._units.popleft() if self._units else Unit())
            child.connection.send(list(child.given[-1]))
        elif kind == "start":
            child.skip_empty()
            self._hook.pytest_runtest_logstart(nodeid=told[0], location=told[1])
        elif kind == "report":
            report = self._hook.pytest_report_from_serializable(config=self._session.config, data=told[0])
            self._hook.pytest_runtest_logreport(report=report)
        elif kind == "finish":
            child.given[0].popleft()
            self._hook.pytest_runtest_logfinish(nodeid=told[0], location=told[1])
        elif kind == "warning":
            self._hook.pytest_warning_recorded.call_historic(kwargs=told[0])
        elif kind == "end":
            child.ends = told[0]

    def _bury(self, child: Child) -> None:
        """It has ended; if it was not to, then of what the test did that it was at."""
        del self._children[child.connection]
        child.connection.close()
        _, status = os.waitpid(child.pid, 0)
        child.skip_empty()
        if child.ends is not None:
            if child.ends:
                raise self._session.Interrupted(child.ends)
            return
        if child.given[0]:
            item = self._session.items[child.given[0].popleft()]
            why = f"the process of the tests ended with {os.waitstatus_to_exitcode(status)} while it ran {item.nodeid}"
            report = pytest.TestReport(item.nodeid, item.location, {}, "failed", why, "call")
            self._hook.pytest_runtest_logreport(report=report)
        self._units.extendleft(reversed([left for left in child.given if left]))
        if self._units:
            self._begin()

    def _look_for_an_end(self) -> None:
        if self._session.shouldfail:
            raise self._session.Failed(self._session.shouldfail)
        if self._session.shouldstop:
            raise self._session.Interrupted(self._session.shouldstop)


class Child:
    """What the parent knows of a copy."""

    def __init__(self, pid: int, connection: Any) -> None:
        self.pid = pid
        self.connection = connection
        self.given = deque([Unit()])  # what it has not finished
        self.ends: str | None = None  # it has said so, and why if it was before its time

    def skip_empty(self) -> None:
        while len(self.given) > 1 and not self.given[0]:
            self.given.popleft()


def units(nodeids: Iterable[str]) -> deque[Unit]:
    """The places of tests that one process runs together, in the order of their first ones."""
    found: dict[str, Unit] = {}
    for place, nodeid in enumerate(nodeids):
        found.setdefault(unit(nodeid), Unit()).append(place)
    return deque(found.values())


# --- the copies ------------------------------------------------------------------------------------------------------


def _live(session: pytest.Session, parent: Connection[Any, Any]) -> NoReturn:
    """A copy's whole life."""
    status, why = 1, "a copy has not begun"
    try:
        atexit._clear()  # the parent's
        _become_reporter(session.config, parent)
        why = _run_units(session, parent)
        status = 0
    except (KeyboardInterrupt, pytest.exit.Exception) as error:
        why = f"{type(error).__name__} {error}"
    except ConnectionError:
        why = ""  # the parent has stopped listening
    except BaseException as error:
        sys.excepthook(*sys.exc_info())
        why = repr(error)
    finally:
        _end(session, lambda: parent.send(("end", why)))
        os._exit(status)


def _end(session: Any, tell: Callable[[], None]) -> None:
    """Fixtures that a stop has left, whatever the tests have registered, and the word of it."""
    capture: Any = session.config.pluginmanager.get_plugin("capturemanager")
    try:
        session._setupstate.teardown_exact(None)
        if capture:
            capture.stop_global_capturing()
        atexit._run_exitfuncs()
        tell()
    except ConnectionError:
        pass  # the parent waits for the end alone
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()


def _become_reporter(config: pytest.Config, parent: Connection[Any, Any]) -> None:
    manager = config.pluginmanager
    if reporter := manager.get_plugin("terminalreporter"):
        manager.unregister(reporter)
        manager.register(_Silent(reporter), "terminalreporter")
    if capture := manager.get_plugin("capturemanager"):
        capture.start_global_capturing()
        capture.suspend_global_capture()
    if isinstance(costs := manager.get_plugin(Costs.NAME), Costs):
        costs.begin_anew()
    manager.register(_Reporter(config, parent))


def _run_units(session: pytest.Session, parent: Connection[Any, Any]) -> str:
    """Why it has ended before its time, if so."""
    coming = _ask(parent)
    while coming:
        places, coming = coming, ()
        for place, following in zip(places, [*places[1:], None], strict=True):
            if following is None:
                coming = _ask(parent)
                following = coming[0] if coming else None
            item = session.items[place]
            item.config.hook.pytest_runtest_protocol(
                item=item, nextitem=None if following is None else session.items[following]
            )
            if why := session.shouldfail or session.shouldstop:
                return str(why)
            if parent.poll():  # nothing is sent that was not asked for: it has closed its end
                return ""
    return ""


def _ask(parent: Connection[Any, Any]) -> Sequence[int]:
    parent.send(("next",))
    try:
        places: list[int] = parent.recv()
        return places
    except EOFError:
        return ()


class _Silent:
    """In the terminal reporter's place: whoever has something to say at once finds where."""

    def __init__(self, reporter: Any) -> None:
        self._tw = reporter._tw


class _Reporter:
    """A plugin of a copy: what is logged goes to the parent."""

    def __init__(self, config: pytest.Config, parent: Connection[Any, Any]) -> None:
        self._config = config
        self._parent = parent

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._parent.send(("start", nodeid, location))

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        data = self._config.hook.pytest_report_to_serializable(config=self._config, report=report)
        self._parent.send(("report", data))

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        self._parent.send(("finish", nodeid, location))

    def pytest_warning_recorded(
        self, warning_message: warnings.WarningMessage, when: str, nodeid: str, location: Any
    ) -> None:
        warning_message.source = None
        try:
            pickle.dumps(warning_message)
        except Exception:  # its text will do
            warning_message.message = Warning(str(warning_message.message))
        told = {"warning_message": warning_message, "when": when, "nodeid": nodeid, "location": location}
        self._parent.send(("warning", told))
