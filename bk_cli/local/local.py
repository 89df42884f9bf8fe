# SPDX-License-Identifier: Apache-2.0
"""``bk local``: runs ZooKeeper and bookies on this machine, for a first try, for development and for tests."""

from __future__ import annotations

import json
import shlex
import signal
import threading
from collections.abc import Mapping
from pathlib import Path
from types import FrameType

import click

from bk_cli import options, output
from bk_cli.local.cluster import LocalCluster
from bk_cli.local.local_security import ADMIN, CLIENT, LocalSecurity

LOOK_S = 0.5  # how often bookies are checked, so that a dead one is reported soon

_SNIPPETS = """\
PySpark (Python 3.11 or later; in the checkout: pip install '.[spark]'):

    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    uri = "{uri}"
    spark.range(1000).selectExpr("CAST(id AS STRING) AS value") \\
        .write.format("bookkeeper").option("metadataServiceUri", uri).mode("append").save("numbers")
    spark.read.format("bookkeeper").option("metadataServiceUri", uri).load("numbers").show(5)

Python:

    import bk_core.blocking
    with bk_core.blocking.connect("{uri}") as bookkeeper:
        with bookkeeper.create_ledger(password=b"secret") as ledger:
            print(ledger.ledger_id, ledger.append(b"first"))
"""

_SECURE_SNIPPETS = """\
Every port speaks TLS and requires a certificate; a client without a role may do nothing (docs/security.md).
Certificates and keys are in {folder}, which only you can enter.

Use bk as a client that may read and write; to use it as the administrator, take {admin}:

    . {client}
    bk bookie list

PySpark (Python 3.11 or later; in the checkout: pip install '.[spark]'):

    from pyspark.sql import SparkSession
    spark = SparkSession.builder.getOrCreate()
    options = {options}
    spark.range(1000).selectExpr("CAST(id AS STRING) AS value") \\
        .write.format("bookkeeper").options(**options).mode("append").save("numbers")
    spark.read.format("bookkeeper").options(**options).load("numbers").show(5)

Python:

    import bk_core.blocking
    from bk_core.client import ClientConfig
    config = ClientConfig(**{settings})
    with bk_core.blocking.connect("{uri}", config=config) as bookkeeper:
        with bookkeeper.create_ledger(password=b"secret") as ledger:
            print(ledger.ledger_id, ledger.append(b"first"))
"""


@click.command()
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path("bk-data"),
    help="Directory for all data. A later start with the same directory has the data again.",
)
@click.option("--bookies", type=click.IntRange(1, 64), help="How many bookies.  [default: 4, one of them a spare]")
@click.option("--port", type=click.IntRange(0, 65000), help="Port of the first bookie; 0: free ones.  [default: 3181]")
@click.option(
    "--zookeeper-port", type=click.IntRange(0, 65535), help="Port of ZooKeeper; 0: a free one.  [default: 2181]"
)
@click.option("--zookeeper", "zookeeper_uri", metavar="URI", help="Use this running ZooKeeper instead of starting one.")
@click.option(
    "--apache",
    is_flag=True,
    help="Run Apache's bookies, in Java. Maven fetches the jars, or $BOOKKEEPER_HOME has them.",
)
@click.option(
    "--secure", is_flag=True, help="Make certificates and roles, and require them on every port, ZooKeeper's too."
)
@options.as_json
def local(
    data: Path,
    bookies: int | None,
    port: int | None,
    zookeeper_port: int | None,
    zookeeper_uri: str | None,
    apache: bool,
    secure: bool,
    as_json: bool,
) -> int:
    """Run a real ZooKeeper and four bookies on this machine until Ctrl-C or SIGTERM.

    Only this machine can connect. Data stays in --data; the next start has it again. With --json one line says when
    it is ready: metadataServiceUri, bookies, data; with --secure also the settings of clients: client, sparkOptions,
    environment and adminEnvironment.
    """
    ended = threading.Event()
    cluster = LocalCluster(
        data,
        bookies=bookies,
        port=port,
        zookeeper_port=zookeeper_port,
        zookeeper_uri=zookeeper_uri,
        apache=apache,
        secure=secure,
        note=output.print_note,
    )
    signal.signal(
        signal.SIGTERM, _interrupt
    )  # during the start it acts as Ctrl-C: everything that was started is stopped
    with cluster:
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda *_: ended.set())
        _print_ready(cluster, as_json)
        code = _watch(cluster, ended)
        output.print_note("stopping")
    output.print_note(f"stopped; the data is in {cluster.data_dir}")
    return code


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt


def _print_ready(cluster: LocalCluster, as_json: bool) -> None:
    if as_json:
        bookies = [{"id": b.bookie_id, "port": b.port, "pid": b.pid} for b in cluster.bookies]
        facts = {"metadataServiceUri": cluster.uri, "bookies": bookies, "data": str(cluster.data_dir)}
        output.print_json(facts if cluster.security is None else {**facts, **_told(cluster, cluster.security)})
        return
    count = len(cluster.bookies)
    output.print_facts(
        {
            "metadataServiceUri": cluster.uri,
            "bookies": ", ".join(bookie.bookie_id for bookie in cluster.bookies),
            "data": cluster.data_dir,
        }
    )
    output.print_line("Only this machine can connect: everything listens on loopback.")
    if count < 4:
        output.print_line(f"With {count} bookies there is no spare: when one dies, new ledgers on three bookies fail.")
    output.print_line()
    output.print_line(
        _SNIPPETS.format(uri=cluster.uri) if cluster.security is None else _secure(cluster, cluster.security)
    )
    output.print_line("Ctrl-C stops it.")


def _told(cluster: LocalCluster, security: LocalSecurity) -> dict[str, object]:
    return {
        "client": cluster.client_settings,
        "sparkOptions": cluster.spark_options,
        "environment": security.environment(CLIENT, cluster.uri),
        "adminEnvironment": security.environment(ADMIN, cluster.uri),
    }


def _secure(cluster: LocalCluster, security: LocalSecurity) -> str:
    return _SECURE_SNIPPETS.format(
        folder=security.path,
        admin=shlex.quote(str(security.environment_path(ADMIN))),
        client=shlex.quote(str(security.environment_path(CLIENT))),
        options=_as_python(cluster.spark_options),
        settings=_as_python(cluster.client_settings),
        uri=cluster.uri,
    )


def _as_python(values: Mapping[str, object]) -> str:
    """Return a dict as Python text, indented as in the snippets."""
    lines = (f'        "{name}": {value if value is True else json.dumps(value)},\n' for name, value in values.items())
    return "{\n" + "".join(lines) + "    }"


def _watch(cluster: LocalCluster, ended: threading.Event) -> int:
    """Wait for the end, and report each process that dies, once. Return 0 after a signal, and 1 when all bookies or
    ZooKeeper have ended."""
    dead: set[int] = set()
    while not ended.wait(LOOK_S):
        for bookie in cluster.bookies:
            if not bookie.is_running and bookie.number not in dead:
                dead.add(bookie.number)
                output.print_note(
                    f"bookie {bookie.number} ({bookie.bookie_id}) ended with {bookie.exit_code}; see {bookie.log_path}"
                )
        if len(dead) == len(cluster.bookies):
            output.print_note("no bookie is left")
            return 1
        if cluster.zookeeper is not None and not cluster.zookeeper.is_running:
            output.print_note(f"ZooKeeper ended; its log is {cluster.zookeeper.log_path}")
            return 1
    return 0
