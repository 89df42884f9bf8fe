# SPDX-License-Identifier: Apache-2.0
"""``bk doctor --spark``: runs a job of one task, which reports what its worker has and reaches."""

from __future__ import annotations

import os
import platform
import sys
from collections.abc import Iterator
from typing import Any

import bk_core
from bk_cli.access import Access
from bk_core.cluster.finding import Finding, fine
from bk_core.errors import BookieUnreachableError, PackageMismatchError
from bk_core.installing import how_to_install
from bk_core.transport.lanes import endpoint_of

_INTERPRETER = "activate the virtual environment, or set PYSPARK_PYTHON to its python on all nodes"


def run_probe(access: Access, master: str | None) -> Iterator[Finding]:
    """Yield the findings about the driver, then about a worker. Raises PackageMismatchError, BookieUnreachableError."""
    try:
        import pyspark
    except ImportError as error:
        raise PackageMismatchError("pyspark is not installed here", remedy=how_to_install("spark")) from error
    endpoints = _endpoints(access)
    session = _session(master)
    try:
        yield fine(f"pyspark {pyspark.__version__}, master {session.conf.get('spark.master', 'unknown')}", "spark")
        if tuple(map(int, pyspark.__version__.split(".")[:2])) < (4, 0):
            raise PackageMismatchError(
                "pyspark is too old: the Python data source needs 4.0 or later",
                value=f"pyspark {pyspark.__version__}",
                remedy=how_to_install("spark"),
            )
        yield from _judge(_ask(session, endpoints))
    finally:
        session.stop()


def _endpoints(access: Access) -> list[tuple[str, int]]:
    with access.store() as store:
        found = map(endpoint_of, store.writable_bookies().values())
        return [(endpoint.host, endpoint.port) for endpoint in found if endpoint is not None]


def _session(master: str | None) -> Any:
    from pyspark.sql import SparkSession

    builder: Any = SparkSession.builder.appName("bk doctor").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    if master or not (os.environ.get("SPARK_HOME") or os.environ.get("SPARK_CONF_DIR")):
        builder = builder.master(master or "local[1]")
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session


def _ask(session: Any, endpoints: list[tuple[str, int]]) -> dict[str, Any]:
    from py4j.protocol import Py4JError
    from pyspark import cloudpickle
    from pyspark.errors import PySparkException

    from bk_cli.operate import doctor_probe

    cloudpickle.register_pickle_by_value(doctor_probe)
    try:
        found: list[dict[str, Any]] = session.sparkContext.parallelize([endpoints], 1).map(doctor_probe.probe).collect()
    except (PySparkException, Py4JError) as error:
        raise PackageMismatchError(
            "a Spark task could not run",
            value=_last_line(str(error)),
            remedy=_INTERPRETER,
        ) from error
    return found[0]


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("at ")]
    return next(
        (line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[-1] if lines else ""
    )


def _judge(worker: dict[str, Any]) -> Iterator[Finding]:
    where = f"worker on {worker['host']} ({worker['executable']})"
    if worker["package"] != bk_core.__version__:
        raise PackageMismatchError(
            f"the {where} {'lacks the package' if worker['package'] is None else 'has another version of the package'}",
            value=f"worker: {worker['package'] or 'none'}, driver: {bk_core.__version__} ({sys.executable})",
            remedy=f"{_INTERPRETER}; version {bk_core.__version__} there: {how_to_install()}",
        )
    if worker["pyarrow"] is None:
        raise PackageMismatchError(f"the {where} lacks pyarrow", remedy="on every node type: pip install pyarrow")
    if worker["python"].split(".")[:2] != platform.python_version().split(".")[:2]:
        raise PackageMismatchError(
            f"the {where} has another Python",
            value=f"worker: {worker['python']}, driver: {platform.python_version()}",
            remedy=_INTERPRETER,
        )
    has = f"Python {worker['python']}, pyarrow {worker['pyarrow']}, package {worker['package']}"
    yield fine(f"{where}: {has}", "spark")
    if worker["unreachable"]:
        raise BookieUnreachableError(
            f"the {where} cannot reach {len(worker['unreachable'])} bookies",
            value="; ".join(worker["unreachable"]),
            remedy="bookies must advertise addresses that all Spark nodes reach (--advertised-address)",
        )
    yield fine("one task ran, and its worker reaches every bookie", "spark")
