# SPDX-License-Identifier: Apache-2.0
"""Fixtures that every folder of tests may use."""

from __future__ import annotations

import asyncio
import gc
import inspect
import logging
import os
from collections.abc import Callable, Generator, Iterator

import pytest

from bk_cli.local import children
from bk_cli.local.zookeeper_server import ZooKeeperServer
from tests.kit import amount, canaries, spark_classes, zookeeper_classes
from tests.kit import memory_store as memory_store  # for memory://
from tests.kit.zookeeper_ensemble import ZooKeeperEnsemble

REAL = ("zookeeper", "e2e", "spark", "interop")
"""Marks of tests that need servers. Each such test has mark ``real`` too, by which the scripts choose."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="write the traces of tests/scenarios anew; read the diff")
    parser.addoption("--few", action="store_true", help="a part of the seeds and examples, as scripts/check")


QUICK_START = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""For every Java that a test starts. Else it compiles for the few queries of a test as for a day's work: half of the
time of a suite."""
LONGEST = (
    *("spark classic", "spark e2e", "trials/spark/test_spark_trial.py", "spark connect"),
    *("e2e", "trials/heal/test_heal_trial.py"),
    *("trials/topics/test_topics_trial.py", "interop/test_pulsar_topics.py", "interop/test_tools.py"),
    *("spark standalone", "interop/test_pulsar_spark.py", "release/test_upgrade.py"),
)
"""Groups of minutes, which begin first: none is left alone at the end."""
HUNG_SHARE = 0.7
"""After this share of its time a coroutine is cancelled."""
SLOW_TEST_S = 300
"""For tests of Spark, whose first one waits for it, and for long ones, on a machine that others keep busy."""


def pytest_configure(config: pytest.Config) -> None:
    gc.disable()  # until all is collected
    os.environ.setdefault("JDK_JAVA_OPTIONS", QUICK_START)
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # numpy's library spends up to 0.1 s of a process on its threads
    zookeeper_classes.use()
    spark_classes.use()
    children.PORTS = _own_ports(children.PORTS)
    if config.getoption("--few"):
        amount.try_few()


def _own_ports(ports: range) -> range:
    """This worker's part: what one has killed, to start it again, leaves a port free that another would take. A worker
    that takes a dead one's place has a number above all others."""
    workers = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
    number = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0")[2:]) % workers
    share = len(ports) // workers
    return ports[number * share : (number + 1) * share]


@pytest.hookimpl(tryfirst=True)  # pytest chooses by marks in the same hook, and xdist reads them
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what needs servers, and what ``--dist loadgroup`` keeps together on one worker: a mode of Spark,
    Spark's tests without a mode, what shares a cluster, or a file. A mode has a Java of its own, which costs as much as
    thirty tests until it is warm."""
    groups = {item: _group(item) for item in items}
    for item in items:
        if any(map(item.get_closest_marker, REAL)):
            item.add_marker(pytest.mark.real)
        item.add_marker(pytest.mark.xdist_group(groups[item]))
        slow = item.get_closest_marker("spark") or item.get_closest_marker("long")
        if slow and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TEST_S))
    items.sort(key=_turns(items, groups))


def _turns(items: list[pytest.Item], groups: dict[pytest.Item, str]) -> Callable[[pytest.Item], tuple[int, bool]]:
    """The longest groups first, and by turns one that waits for servers and one that computes."""
    numbers: dict[bool, dict[str, int]] = {True: {name: k for k, name in enumerate(LONGEST)}, False: {}}

    def turn(item: pytest.Item) -> tuple[int, bool]:
        real = item.get_closest_marker("real") is not None
        of_kind = numbers[real]
        return of_kind.setdefault(groups[item], len(of_kind)), real

    return turn


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Let each test begin with its log lines. Campaigns of the simulator and of the fuzzer turn them off for their
    process, which may be the one of this worker."""
    logging.disable(logging.NOTSET)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Runs a test that is a coroutine in a loop of its own. What hangs fails, before the whole worker is ended."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    marker = pyfuncitem.get_closest_marker("timeout")
    limit_s = HUNG_SHARE * float(marker.args[0] if marker else pyfuncitem.config.getini("timeout"))

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames})

    asyncio.run(bounded())
    return True


def pytest_collection_finish(session: pytest.Session) -> None:
    """A version of pytest may keep the marks from xdist: then each worker would start every server. And what collecting
    made stays: looking through it for garbage again and again would take a tenth of the time."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 20)  # tests make and drop many objects; the usual 700 takes a twentieth of the time
    gc.enable()
    if getattr(session.config.option, "loadgroup", False) and not all("@" in item.nodeid for item in session.items):
        raise pytest.UsageError("xdist did not take the groups of tests: another version of pytest or xdist is needed")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test that prints or logs a secret fails (``tests/kit/canaries.py``)."""
    report: pytest.TestReport = yield
    heard = [word for title, text in report.sections for word in canaries.heard_in(text.encode("utf-8", "replace"))]
    if heard and report.passed:
        report.outcome, report.longrepr = "failed", f"a secret was printed or logged: {heard[0]!r}"
    return report


def _group(item: pytest.Item) -> str:
    parts = item.path.relative_to(item.config.rootpath).parts[1:]
    params = item.callspec.params if hasattr(item, "callspec") else {}
    if parts[0] == "spark" and item.get_closest_marker("spark"):
        return f"spark {params.get('mode', 'e2e')}"
    has_cluster = "cluster" in getattr(item, "fixturenames", ()) or params.get("served") == "processes"
    if parts[0] in ("cli", "e2e") and has_cluster:
        return parts[0]
    return "/".join(parts)


@pytest.fixture(scope="session")
def zookeeper_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """A real ZooKeeper for the whole run, without fsync; sessions may be as short as a fifth of a second."""
    server = ZooKeeperServer(tick_ms=100, durable=False)
    server.start(tmp_path_factory.mktemp("zookeeper"))
    yield server
    server.stop()


@pytest.fixture(scope="module")
def zookeeper_ensemble(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    """Three real servers; a test that holds one back heals it."""
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("ensemble")) as ensemble:
        yield ensemble


@pytest.fixture(scope="session")
def zookeeper_uri(zookeeper_server: ZooKeeperServer) -> str:
    """``zk://127.0.0.1:port``, to which a test appends a ledgers root of its own."""
    return f"zk://{zookeeper_server.connect_string}"
