"""Fixtures that several folders of tests share."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from functools import partial
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from actorserve.kernels.cpu.native.cache import cache_folder
from tests.support.runs.costs import Costs
from tests.support.runs.forks import Forks
from tests.support.runs.original import take_huge_pages
from tests.support.runs.sharing import Sharing
from tests.support.runs.temporary import take_folder
from tests.support.selection import give_time
from tests.support.server import Server
from tests.support.warm import AUTHORITIES, SAME_SUMS

assert "torch" not in sys.modules, "what comes before this must not import torch: it would have its threads by now"
os.environ["OMP_NUM_THREADS"] = "1"  # threads that spin take what servers of tests need, and copies have none
os.environ.pop("OPENBLAS_NUM_THREADS", None)  # which would count for more
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")  # copies of this process would not have its threads
# Clients of tests know by themselves whom they trust: to read the machine's 150 authorities would be 30 ms for each.
os.environ[AUTHORITIES] = str(Path(__file__).parent)
os.environ.pop("SSL_CERT_FILE", None)
os.environ.setdefault(SAME_SUMS, "AUTO,STRICT")  # on some CPUs MKL's sums are others where numbers lie elsewhere
PROXIES = ("http_proxy", "https_proxy", "all_proxy")
for name in (*PROXIES, *map(str.upper, PROXIES), "FORCE_COLOR"):  # clients reach servers here, and outputs are as ever
    os.environ.pop(name, None)
MANY_TESTS = 1000  # a run that forks its process often enough for a second of copying to be worth it
MANY_DESCRIPTORS, MORE, MOST_DESCRIPTORS = 300, 100, 800  # of the 1,024 that some machines allow
SHORT = ("bench", "chat", "detokenizer", "grammars", "http", "model", "options", "protocol", "renderer", "runtime")
HERE = Path(__file__).parent
# What hypothesis draws anew with --hypothesis-profile=default may take as long as a busy machine makes it take, too.
NEW = settings.get_profile("default")
settings.register_profile("default", NEW, deadline=None, suppress_health_check=[HealthCheck.too_slow])


def pytest_addoption(parser: pytest.Parser) -> None:
    Forks.add_option(parser)


def pytest_configure(config: pytest.Config) -> None:
    """Where the user's cache cannot be written, what is compiled once is kept for the run at least. All else that is
    made for a while is in a folder of the run's.

    What is imported and collected stays: the collector, which would go through it again and again, has time after it.
    """
    gc.disable()
    config.pluginmanager.register(Costs(), Costs.NAME)
    config.pluginmanager.register(Forks(config))
    config.pluginmanager.register(Sharing())
    config.add_cleanup(partial(shutil.rmtree, take_folder(), ignore_errors=True))
    folder = cache_folder()
    if folder is None or not os.access(folder, os.W_OK | os.X_OK):
        kept = tempfile.TemporaryDirectory(prefix="actorserve-cache-")
        os.environ["XDG_CACHE_HOME"] = kept.name  # processes that share the run inherit it
        config.add_cleanup(kept.cleanup)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Folders whose files take seconds come last: where several processes share a run, these fill up its end."""
    give_time(items)
    items.sort(key=lambda item: item.path.relative_to(HERE).parts[0] in SHORT)


def pytest_collection_finish(session: pytest.Session) -> None:
    """Modules and tests stay to the end: a collection, of which tests ask for hundreds, need not go through them, and a
    fork not through 140,000 small pages.
    """
    gc.freeze()
    if len(session.items) >= MANY_TESTS:
        take_huge_pages()
    gc.enable()


def pytest_runtest_setup() -> None:
    """What a test starts must hear Ctrl-C and the end of its terminal, also where a test before played an actor in this
    process, or all of them run in the background or under nohup: these ignore it, and whoever is started inherits that.
    """
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
        signal.signal(signal.SIGHUP, signal.SIG_DFL)


class Descriptors:
    """Rings that a test has made hold descriptors until Python's collector gets to them; those that it leaves are no
    reason to call it behind each test that follows, which takes a tenth of a second late in a run.
    """

    many = MANY_DESCRIPTORS

    @classmethod
    def look(cls) -> None:
        if count_descriptors() > cls.many:
            gc.collect()
            cls.many = min(max(MANY_DESCRIPTORS, count_descriptors() + MORE), MOST_DESCRIPTORS)


def count_descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def pytest_runtest_logfinish() -> None:
    Descriptors.look()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A failing test shows what the servers of its fixtures have said; of its own their end tells that."""
    report = yield
    if report.failed and isinstance(item, pytest.Function):
        for name, value in item.funcargs.items():
            if isinstance(value, Server):
                report.sections.append((f"output of {name}", value.last_output))
    return report


@pytest.fixture(scope="session")
def demo_server() -> Iterator[Server]:
    """A real server with the demo model, for all tests that do not disturb it."""
    with Server() as server:
        yield server


@pytest.fixture(scope="module")
def server(request: pytest.FixtureRequest) -> Iterator[Server]:
    """A server for all tests of a module, with the module's SERVER_OPTIONS."""
    with Server(*request.module.SERVER_OPTIONS) as server:
        yield server
