# SPDX-License-Identifier: Apache-2.0
"""``bk doctor``: checks everything that the cluster and Spark need, and whether this host reaches it. It says what to
do about each problem."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator

import click

import bk_core
from bk_cli import exit_codes, options, output
from bk_cli.access import Access, access
from bk_cli.local.java import find_java
from bk_cli.local.python_build import REMEDY, built_with_optimizations
from bk_cli.output import in_words
from bk_core.cluster.bookie_answers import Said, ask_bookies
from bk_core.cluster.finding import Finding, Weight, fine, note, problem
from bk_core.errors import (
    BookieUnreachableError,
    BookKeeperError,
    MetadataCorruptError,
    NotEnoughBookiesError,
    Outcome,
)
from bk_core.model import BookieId

SPARE = 4  # a ledger's three bookies and a spare (RULES E2)
REACH_TIMEOUT_S = 3.0
"""The seconds that each bookie has for its answer."""
ACL_NODES_MAX = 10_000
"""The maximum number of nodes whose ACLs are examined."""
ACL_LOOK_S = 3.0
"""The seconds after which the command stops examining ACLs."""
NODES_LOOK_S = 5.0
"""The seconds after which the command stops reading the nodes of the metadata store. It reads the few that can stop a
whole service first, and ledgers last."""
NODES_NAMED = 50
"""The number of unreadable nodes that are named one by one."""
PACKAGES = ("numpy", "pyarrow", "grpcio", "protobuf", "kazoo", "crc32c", "pyspark", "pandas")


_STATUS = {Weight.FINE: "ok", Weight.NOTE: "note", Weight.PROBLEM: "fail"}


@click.command()
@click.option("--spark", "with_spark", is_flag=True, help="Also run a Spark job of one task, and look at its worker.")
@click.option("--master", metavar="URL", help="Spark master for --spark.  [default: Spark's own, else local[1]]")
@access()
@options.as_json
def doctor(access: Access, with_spark: bool, master: str | None, as_json: bool) -> int:
    """Check Java, packages, ZooKeeper, the bookies and (with --spark) Spark's workers; say what to do.

    The exit code is 0 when nothing failed, otherwise that of the first failure.
    """
    code = 0
    for finding in _findings(access, with_spark, master):
        code = code or (exit_codes.exit_code_of(finding.error) if finding.error is not None else 0)
        check, status, text = finding.where, _STATUS[finding.weight], finding.what
        if as_json:
            output.print_json({"check": check, "status": status, "text": text})
        else:
            output.print_line(f"{status:<5} {check:<10} {text}")
    return code


def _findings(access: Access, with_spark: bool, master: str | None) -> Iterator[Finding]:
    yield fine(f"pyspark-bookkeeper {bk_core.__version__}", "package")
    yield _python(built_with_optimizations())
    yield fine(", ".join(_versions()), "packages")
    yield from _guarded("java", _java)
    yield from _guarded("cluster", lambda: _cluster(access))
    yield from _guarded("nodes", lambda: _nodes(access))
    yield from _guarded("acls", lambda: _acls(access))
    if with_spark:
        yield from _guarded("spark", lambda: _spark(access, master))


def _python(is_optimized: bool) -> Finding:
    about = f"{platform.python_version()} ({sys.executable}) on {platform.platform()}"
    if is_optimized:
        return fine(about, "python")
    slow = "built without optimizations: bookies and clients need at least half as much processor time again"
    return note(f"{about}, {slow}; {REMEDY}", where="python")


def _guarded(check: str, look: Callable[[], Iterator[Finding]]) -> Iterator[Finding]:
    try:
        yield from look()
    except BookKeeperError as error:
        yield _failed(check, error)


def _failed(check: str, error: BookKeeperError) -> Finding:
    return Finding(Weight.PROBLEM, str(error), where=check, error=type(error))


def _versions() -> Iterator[str]:
    for name in PACKAGES:
        try:
            yield f"{name} {importlib.metadata.version(name)}"
        except importlib.metadata.PackageNotFoundError:
            yield f"no {name}"


def _java() -> Iterator[Finding]:
    java = find_java(os.environ)
    known = "" if java.major in (17, 21) else "; 17 and 21 are known good"
    yield Finding(Weight.NOTE if known else Weight.FINE, f"Java {java.major} ({java.path}){known}", where="java")


def _cluster(access: Access) -> Iterator[Finding]:
    started = time.monotonic()
    with access.store() as store:
        instance = store.instance_id()
        took_ms = (time.monotonic() - started) * 1000
        yield fine(f"{access.uri} answers in {took_ms:.0f} ms; cluster {instance}", "zookeeper")
        writable, read_only = store.writable_bookies(), store.read_only_bookies()
        known = store.known_bookies()
    registered = {**read_only, **writable}
    reached = 0
    answers = ask_bookies(list(registered.values()), access.caller(instance, "bk doctor"), timeout_s=REACH_TIMEOUT_S)
    for bookie_id, answer in sorted(answers.items()):
        if isinstance(answer, BookKeeperError):
            yield _failed("bookie", answer)
        elif bookie_id in writable:
            reached += 1
            yield fine(f"{bookie_id}: {_in_words(answer)}", "bookie")
        else:
            what = f"{bookie_id}: {_in_words(answer)}; read-only: it serves reads and refuses adds"
            yield note(what, where="bookie")
    for bookie_id in known:
        if bookie_id not in registered:
            yield _failed("bookie", _unregistered(bookie_id))
    yield from _guarded("quorum", lambda: _quorum(reached))


def _nodes(access: Access) -> Iterator[Finding]:
    """Yield the nodes in ZooKeeper that cannot be read. Everything else works without them, so no other command reports
    them."""
    from bk_core.cluster.unreadable import find_unreadable

    with access.store() as store:
        found = find_unreadable(store, NODES_LOOK_S)
    for node in found.nodes[:NODES_NAMED]:
        text = f"{node}{f'; {node.remedy}' if node.remedy else ''}"
        yield Finding(Weight.PROBLEM, text, where="nodes", error=MetadataCorruptError)
    if len(found.nodes) > NODES_NAMED:
        yield problem(f"{len(found.nodes) - NODES_NAMED:,} more nodes cannot be read", where="nodes")
    looked = "all nodes" if found.is_whole else f"the nodes that could be looked at in {NODES_LOOK_S:.0f} s"
    if not found.nodes:
        weight = Weight.FINE if found.is_whole else Weight.NOTE
        yield Finding(weight, f"{looked} in ZooKeeper can be read", where="nodes")
    elif not found.is_whole:
        yield note(f"these are of {looked}", where="nodes")


def _acls(access: Access) -> Iterator[Finding]:
    from bk_core.metadata.layout import parse_service_uri
    from bk_core.metadata.zookeeper.securing import find_open_nodes

    with access.zookeeper() as tree:  # of all stores, only ZooKeeperTree has ACLs
        looked = find_open_nodes(tree, parse_service_uri(access.uri).root, nodes_max=ACL_NODES_MAX, within_s=ACL_LOOK_S)
    count, of = sum(looked.open_kinds.values()), f"{looked.nodes}{'' if looked.is_whole else ' looked at'}"
    if count:
        yield note(
            f"{count} of {of} nodes in ZooKeeper may be changed by everybody who reaches it, such as "
            f"{', '.join(looked.open_paths)}; see bk cluster secure-zookeeper --dry-run",
            where="acls",
        )
    else:
        yield fine(f"none of {of} nodes in ZooKeeper may be changed by everybody", "acls")


def _unregistered(bookie_id: BookieId) -> BookieUnreachableError:
    return BookieUnreachableError(
        f"bookie {bookie_id} is known to this cluster and is not registered",
        value="it has a cookie; entries that it holds have one copy less meanwhile",
        remedy="start it; if it runs, its log says what it waits for",
        outcome=Outcome.NOT_APPLIED,
    )


def _quorum(reached: int) -> Iterator[Finding]:
    if reached < SPARE - 1:
        raise NotEnoughBookiesError(
            "a ledger of the default quorum 3/3/2 needs 3 bookies",
            value=f"{reached} can be reached",
            remedy="start more with bk bookie run, or use a smaller --ensemble-size",
        )
    if reached < SPARE:
        yield note("three bookies and no spare: when one dies, new ledgers on three fail", where="quorum")
    else:
        yield fine(f"{reached} bookies: enough for 3/3/2 and {reached - SPARE + 1} to spare", "quorum")


def _spark(access: Access, master: str | None) -> Iterator[Finding]:
    from bk_cli.operate.doctor_spark import run_probe

    yield from run_probe(access, master)


def _in_words(said: Said) -> str:
    version = f"{said.info.version}, " if said.info.version else ""
    room = f"{in_words(said.info.free_bytes)} of {in_words(said.info.total_bytes)} free"
    where = f"{said.endpoint.protocol} at {said.endpoint.where}"
    return f"{where} answers in {said.took_ms:.0f} ms, {version}{room}"
